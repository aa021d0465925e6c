"""Defines the lengths of the rows in trial batches, which measure the speed of an executor.

For a CPU, batches of a few rows are enough. A GPU takes about as long for one row as for many, so
small batches would only measure kernel launches. Trial batches for a GPU go up to the maximum size.
"""

import numpy as np

from sluicegate.backends.device_defaults import BatchBounds

Lengths = tuple[int, ...]
# Single rows and several rows, of equal and of different lengths.
CPU_TRIALS: tuple[Lengths, ...] = (
    (4,),
    (12,),
    (32,),
    (96,),
    (8,) * 4,
    (16,) * 8,
    (4, 8, 12, 16),
    (4, 6, 8, 10, 12, 14, 18, 24),
    (6, 10, 14, 64),
    (48,) * 4,
)
# A typical batch on a CPU: 16 rows with 240 tokens in total.
CPU_BATCH: Lengths = (24, *(15,) * 6, *(14,) * 9)
# The lengths of texts follow a lognormal distribution whose median is a third of the longest text.
_USUAL, _SPREAD, _SHORTEST = 1 / 3, 0.6, 4
_SHORT, _ROWS = 32, (1, 8, 64)
# The longest row of a graph without a stated maximum.
_MAX_TOKENS = 512


def device_trials(bounds: BatchBounds, max_tokens: int | None) -> list[Lengths]:
    """Return trial batches for a GPU, the smallest first, from one row up to a full batch.

    Some batches have rows of equal length. Others have the lengths of typical texts.
    """
    longest = max_tokens or _MAX_TOKENS
    found: set[Lengths] = set()
    for rows in (*(n for n in _ROWS if n < bounds.rows), bounds.rows):
        fitting = max(1, min(longest, bounds.tokens // rows))
        for length in {min(_SHORT, fitting), fitting}:
            found |= {(length,) * rows, text_lengths(rows, length)}
    found |= {_longest(bounds, longest)}
    return sorted(found, key=lambda lengths: (len(lengths) * max(lengths), lengths))


def full_batches(bounds: BatchBounds, max_tokens: int | None) -> list[Lengths]:
    """Return full batches, as a device runs them under load.

    There is a batch of short texts, one of usual texts and one of the longest texts.
    """
    longest = max_tokens or _MAX_TOKENS
    fitting = max(1, min(longest, bounds.tokens // bounds.rows))
    return [
        text_lengths(bounds.rows, min(_SHORT, fitting)),
        text_lengths(bounds.rows, fitting),
        _longest(bounds, longest),
    ]


def text_lengths(rows: int, longest: int) -> Lengths:
    """Return `rows` lengths of typical texts. The first is `longest`."""
    drawn = np.random.default_rng(rows).lognormal(np.log(longest * _USUAL), _SPREAD, rows)
    shortest = min(_SHORTEST, longest)
    return (longest, *np.clip(drawn[1:], shortest, longest).astype(int).tolist())


def _longest(bounds: BatchBounds, longest: int) -> Lengths:
    return (longest,) * max(1, min(bounds.rows, bounds.tokens // longest))
