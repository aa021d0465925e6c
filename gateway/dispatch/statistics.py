"""Counts calls, retries, hedges and outcomes of the dispatcher."""

import msgspec

from gateway.types import ItemOutcome


class DispatchStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Calls, and items by how they ended. `retried`, `hedged` and `denied` count item attempts."""

    calls: int
    failed_calls: int
    retried: int
    hedged: int
    """Items tried at a second backend as well, because the first was late."""
    denied: int
    """Retries that the retry budget did not allow."""
    computed: int
    failed: int
    failed_by_code: dict[str, int]


class Counters:
    """The counters behind `DispatchStatistics`."""

    def __init__(self) -> None:
        self.calls = 0
        self.failed_calls = 0
        self.retried = 0
        self.hedged = 0
        self.denied = 0
        self.computed = 0
        self._failed: dict[str, int] = {}

    def count(self, outcome: ItemOutcome) -> None:
        """Count an item's end."""
        if outcome.failure is None:
            self.computed += 1
        else:
            code = outcome.failure.code
            self._failed[code] = self._failed.get(code, 0) + 1

    def statistics(self) -> DispatchStatistics:
        """Return the counts."""
        return DispatchStatistics(
            calls=self.calls,
            failed_calls=self.failed_calls,
            retried=self.retried,
            hedged=self.hedged,
            denied=self.denied,
            computed=self.computed,
            failed=sum(self._failed.values()),
            failed_by_code=dict(self._failed),
        )
