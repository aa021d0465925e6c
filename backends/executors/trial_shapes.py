"""Says which batches an executor is tried with, as the row lengths of each.

A CPU is tried with a few rows. A GPU takes about as long for one row as for many, so that small
batches measure how fast kernels are started: it is tried with all that a batch may hold.
"""

import numpy as np

from backends.device_defaults import BatchBounds

Lengths = tuple[int, ...]
# Single rows and several, of one length and of different ones.
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
# A batch as callers of a CPU make it: sixteen rows of 240 tokens together.
CPU_BATCH: Lengths = (24, *(15,) * 6, *(14,) * 9)
# Lengths of texts are lognormal: a third of the longest is usual, and few are much longer.
_USUAL, _SPREAD, _SHORTEST = 1 / 3, 0.6, 4
_SHORT, _ROWS = 32, (1, 8, 64)
# The longest row of a graph that states no maximum.
_MAX_TOKENS = 512


def device_trials(bounds: BatchBounds, max_tokens: int | None) -> list[Lengths]:
    """Return batches for a device, the smallest first: from one row to as many as a batch holds.

    They are of one length, as sorted rows nearly are, and of lengths as texts have them.
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
    """Return what a device runs under load: short texts, usual ones, and the longest."""
    longest = max_tokens or _MAX_TOKENS
    fitting = max(1, min(longest, bounds.tokens // bounds.rows))
    return [
        text_lengths(bounds.rows, min(_SHORT, fitting)),
        text_lengths(bounds.rows, fitting),
        _longest(bounds, longest),
    ]


def text_lengths(rows: int, longest: int) -> Lengths:
    """Return the lengths of rows as texts have them, of which one at least is `longest`."""
    drawn = np.random.default_rng(rows).lognormal(np.log(longest * _USUAL), _SPREAD, rows)
    shortest = min(_SHORTEST, longest)
    return (longest, *np.clip(drawn[1:], shortest, longest).astype(int).tolist())


def _longest(bounds: BatchBounds, longest: int) -> Lengths:
    return (longest,) * max(1, min(bounds.rows, bounds.tokens // longest))
