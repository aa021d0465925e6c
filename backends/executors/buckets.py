"""Rounds batch shapes up to a few buckets, so that memory and captured graphs are reused."""

from typing import NamedTuple

import msgspec


class Shape(NamedTuple):
    """Holds the size of a padded batch."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        """The number of token positions, including padding."""
        return self.rows * self.length


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds row counts and lengths up to buckets.

    From each power of two to the next power of two, there are `row_steps` buckets of row counts and
    `length_steps` buckets of lengths. With 4 steps, rounding increases a value by at most a
    quarter. Lengths are also multiples of `length_multiple`, and at most `max_length`, the number
    of positions of the model.
    """

    length_multiple: int = 8
    length_steps: int = 4
    row_steps: int = 4
    max_length: int | None = None

    def fit(self, rows: int, length: int) -> Shape:
        """Return the bucket shape for a batch of this size."""
        wide = round_up(length, multiple=self.length_multiple, steps=self.length_steps)
        if self.max_length is not None:
            wide = max(length, min(wide, self.max_length))
        return Shape(round_up(rows, multiple=1, steps=self.row_steps), wide)

    def most_rows(self, rows: int) -> int:
        """Return the largest bucket of at most `rows` rows."""
        return next(n for n in range(rows, 0, -1) if self.fit(n, 1).rows == n)

    def shapes(self, *, max_rows: int, max_length: int, max_tokens: int) -> list[Shape]:
        """Return every bucket shape within these bounds, the largest first."""
        rows = {self.fit(number, 1).rows for number in range(1, max_rows + 1)}
        lengths = {self.fit(1, number).length for number in range(1, max_length + 1)}
        found = [Shape(r, n) for r in rows for n in lengths if r * n <= max_tokens]
        return sorted(found, key=lambda shape: (-shape.tokens, shape))


def round_up(size: int, *, multiple: int, steps: int) -> int:
    """Return the smallest bucket of at least `size`, as described in `Buckets`."""
    units = -(-size // multiple)
    octave = 1 << max(0, (units - 1).bit_length() - 1)
    step = max(1, octave // steps)
    return min(-(-units // step) * step, 2 * octave) * multiple
