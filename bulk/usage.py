"""Counts what a bulk job used."""

import msgspec


class BulkUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the distinct items of a job: computed, or found in a gateway's cache; and their work.

    `rows` and `tokens` are those that the model ran. Counted from the answers that are kept, so
    that it is the same however often the job was interrupted.
    """

    computed: int = 0
    hit: int = 0
    rows: int = 0
    tokens: int = 0

    def __add__(self, other: "BulkUsage") -> "BulkUsage":
        return BulkUsage(
            computed=self.computed + other.computed,
            hit=self.hit + other.hit,
            rows=self.rows + other.rows,
            tokens=self.tokens + other.tokens,
        )
