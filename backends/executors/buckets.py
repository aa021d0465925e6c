"""Rounds the shapes of batches up to a few, so that memory and graphs are reused."""

from typing import NamedTuple

import msgspec


class Shape(NamedTuple):
    """Holds the size of a padded batch."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        """How many places for tokens it has, padding included."""
        return self.rows * self.length


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds shapes up: `steps` sizes in each doubling, lengths to a multiple too.

    With 4 steps nothing grows by more than a quarter, and there are 4 shapes where there would be
    hundreds. A length is never rounded beyond `max_length`, for which a model has no positions.
    """

    length_multiple: int = 8
    length_steps: int = 4
    row_steps: int = 4
    max_length: int | None = None

    def fit(self, rows: int, length: int) -> Shape:
        """Return the shape that a batch of this size runs in."""
        wide = round_up(length, multiple=self.length_multiple, steps=self.length_steps)
        if self.max_length is not None:
            wide = max(length, min(wide, self.max_length))
        return Shape(round_up(rows, multiple=1, steps=self.row_steps), wide)

    def most_rows(self, rows: int) -> int:
        """Return the most rows that are a bucket and no more than `rows`."""
        return next(n for n in range(rows, 0, -1) if self.fit(n, 1).rows == n)

    def shapes(self, *, max_rows: int, max_length: int, max_tokens: int) -> list[Shape]:
        """Return every shape within these bounds, the largest first."""
        rows = {self.fit(number, 1).rows for number in range(1, max_rows + 1)}
        lengths = {self.fit(1, number).length for number in range(1, max_length + 1)}
        found = [Shape(r, n) for r in rows for n in lengths if r * n <= max_tokens]
        return sorted(found, key=lambda shape: (-shape.tokens, shape))


def round_up(size: int, *, multiple: int, steps: int) -> int:
    """Return the least bucket that holds `size`: a multiple of `multiple`, `steps` a doubling."""
    units = -(-size // multiple)
    octave = 1 << max(0, (units - 1).bit_length() - 1)
    step = max(1, octave // steps)
    return min(-(-units // step) * step, 2 * octave) * multiple
