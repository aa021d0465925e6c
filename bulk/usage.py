"""Counts the usage of a bulk job."""

import msgspec


class BulkUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the usage of a bulk job.

    `computed` counts distinct items that the model computed. `hit` counts distinct items that were
    found in the shared cache. `rows` and `tokens` count what the model computed. All numbers come
    from stored results, so interruptions do not change them.
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
