"""Which waiting rows run together: a pure decision over lengths."""

from collections.abc import Mapping

import msgspec


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a batch: its rows, its padded tokens, and what company is worth.

    A run costs about as much as `overhead_tokens` further tokens, whatever is in it; a row that
    would cost more in padding than that saves is left for a batch nearer to its length.
    """

    rows: int = 8
    tokens: int = 4096
    overhead_tokens: int = 3


def choose_batch(
    anchor: int, waiting: Mapping[int, int], limits: BatchLimits
) -> list[tuple[int, int]]:
    """Return `(length, rows)` to run with the oldest row, which is `anchor` tokens long.

    `waiting` counts the rows of each length, the oldest among them. Lengths nearest to the
    anchor's come first; the anchor itself always runs, however long it is.
    """
    chosen = {anchor: 1}
    count, longest = 1, anchor
    for length in sorted(waiting, key=lambda length: (abs(length - anchor), length)):
        for _ in range(waiting[length] - (length == anchor)):
            widest = max(longest, length)
            added = (count + 1) * widest - count * longest
            if count == limits.rows or (count + 1) * widest > limits.tokens:
                break
            if added > length + limits.overhead_tokens:
                break
            chosen[length] = chosen.get(length, 0) + 1
            count, longest = count + 1, widest
        if count == limits.rows:
            break
    return list(chosen.items())
