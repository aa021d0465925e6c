"""Counts the usage of a bulk job."""

import msgspec


class BulkUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the distinct items of a job that were computed, or found (`hit`) in the shared cache.

    `rows` and `tokens` count what the model computed. All are counted from stored results, so that
    interruptions do not change them.
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
