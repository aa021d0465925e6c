"""Counts calls, retries, hedges and outcomes of the dispatcher, for all endpoints together.

By region and endpoint they are counted in `endpoint_counts`.
"""

import msgspec

_MOST_CODES = 100
OTHER_CODES = "(others)"


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
        """Count an item that failed; beyond a hundred codes, new ones are counted as one.

        Codes come from backends, where algorithms of model owners run.
        """
        self.failed += 1
        if code not in self.failed_by_code and len(self.failed_by_code) >= _MOST_CODES:
            code = OTHER_CODES
        self.failed_by_code[code] = self.failed_by_code.get(code, 0) + 1
