"""Counts calls, retries, hedges and outcomes of the dispatcher, for all endpoints together.

A counter by region would be one of `GatewayMetrics`.
"""

import msgspec


class DispatchStatistics(msgspec.Struct, kw_only=True):
    """Calls, and items by how they ended. `retried`, `hedged` and `denied` count item attempts."""

    calls: int = 0
    failed_calls: int = 0
    retried: int = 0
    hedged: int = 0
    """Items tried at a second backend as well, because the first was late."""
    denied: int = 0
    """Retries that the retry budget did not allow."""
    computed: int = 0
    failed: int = 0
    failed_by_code: dict[str, int] = {}

    def count_failure(self, code: str) -> None:
        """Count an item that failed."""
        self.failed += 1
        self.failed_by_code[code] = self.failed_by_code.get(code, 0) + 1
