"""Counts calls, retries, hedges and outcomes of the dispatcher: of all endpoints, and of each.

Labels are regions and backends. Backends that names lead to come and go: of so many that are too
many for a page of metrics, the later ones are counted as one.
"""

from collections import Counter

import msgspec

from gateway.types import Endpoint, RegionName
from gateway.upstream.base import CallFailed, Cause

_MOST_CODES = 100
OTHER_CODES = "(others)"
_MOST_ENDPOINTS = 4096
OTHERS = "(others)"


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


class CallStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Gives counts since the start, by their labels."""

    calls: Counter[tuple[str, str, str]] = msgspec.field(default_factory=Counter)
    failures: Counter[tuple[str, str, str]] = msgspec.field(default_factory=Counter)
    hedges: Counter[str] = msgspec.field(default_factory=Counter)
    retries: Counter[str] = msgspec.field(default_factory=Counter)
    spilled: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)


class EndpointCounts:
    """Counts what happens at each endpoint, in `statistics`."""

    def __init__(self) -> None:
        self.statistics = CallStatistics()
        self._names: dict[str, str] = {}

    def call_ended(self, endpoint: Endpoint, error: BaseException | None) -> None:
        """Count a call; `error` is what ended it, `None` where its backend reported."""
        name = self._name(endpoint)
        if error is None:
            outcome = "ok"
        elif isinstance(error, CallFailed):
            outcome = "refused" if error.cause is Cause.REFUSED else "failed"
            self.statistics.failures[endpoint.region, name, error.cause.value] += 1
        elif isinstance(error, Exception):
            outcome = "failed"
            self.statistics.failures[endpoint.region, name, "unexpected"] += 1
        else:
            outcome = "given_up"
        self.statistics.calls[endpoint.region, name, outcome] += 1

    def hedged(self, endpoint: Endpoint, items: int) -> None:
        """Count items for which `endpoint` was late."""
        if items:
            self.statistics.hedges[endpoint.region] += items

    def retried(self, endpoint: Endpoint, items: int) -> None:
        """Count items that are tried again after `endpoint`."""
        if items:
            self.statistics.retries[endpoint.region] += items

    def spilled(self, endpoint: Endpoint, items: int, preferred: RegionName) -> None:
        """Count items whose first try is at `endpoint`, which is not in the preferred region."""
        self.statistics.spilled[preferred, endpoint.region] += items

    def _name(self, endpoint: Endpoint) -> str:
        name = self._names.get(endpoint.backend)
        if name is None:
            is_one_more = len(self._names) < _MOST_ENDPOINTS
            name = self._names[endpoint.backend] = endpoint.backend if is_one_more else OTHERS
        return name
