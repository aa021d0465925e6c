"""Counts calls, retries, hedges and outcomes of the dispatcher: of all endpoints, and of each.

Labels are regions and backends. Backends that names lead to come and go: of so many that are too
many for a page of metrics, the later ones are counted as one.
"""

from collections import Counter
from functools import partial
from typing import Annotated, Final

import msgspec

from sluicegate.gateway.types import Endpoint, RegionName
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.wire.metric_declaration import counter

_MOST_CODES = 100
OTHER_CODES = "(others)"
_MOST_ENDPOINTS = 4096
OTHERS = "(others)"
_count = partial(msgspec.field, default_factory=Counter)


_ITEMS: Final = counter(
    "sluicegate_dispatched_items_total",
    "Ended items that were sent to backends. `outcome`: `computed`, `failed`.",
    "outcome",
)
_CALLS: Final = counter(
    "sluicegate_endpoint_calls_total",
    "Ended calls. `outcome`: `ok`, `refused`, `failed`, `given_up` (the deadline passed, or all "
    "callers left).",
    *("region", "endpoint", "outcome"),
)
_FAILURES: Final = counter(
    "sluicegate_endpoint_failures_total",
    "Refused or failed calls. `cause`: `refused`, `unreachable`, `cut` (the connection closed), "
    "`timed_out`, `unexpected` (a fault of the gateway).",
    *("region", "endpoint", "cause"),
)
_HEDGES: Final = counter(
    "sluicegate_hedges_total",
    "Items sent to a second backend because the first one, in this region, was late.",
    "region",
)
_RETRIES: Final = counter(
    "sluicegate_retries_total", "Items retried after they failed in this region.", "region"
)
_SPILLED: Final = counter(
    "sluicegate_spilled_items_total",
    "Items first sent to another region than the preferred one.",
    *("from_region", "to_region"),
)


class DispatchStatistics(msgspec.Struct, kw_only=True):
    """Calls, and items by how they ended. `retried`, `hedged` and `denied` count item attempts."""

    calls: int = 0
    failed_calls: int = 0
    retried: int = 0
    hedged: int = 0
    """Items tried at a second backend as well, because the first was late."""
    denied: Annotated[
        int, counter("sluicegate_retries_denied_total", "Retries that the retry budget denied.")
    ] = 0
    computed: Annotated[int, _ITEMS("computed")] = 0
    failed: Annotated[int, _ITEMS("failed")] = 0
    failed_by_code: Annotated[
        dict[str, int],
        counter("sluicegate_failed_items_total", "Items that failed, by error code.", "code"),
    ] = {}

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

    calls: Annotated[Counter[tuple[str, str, str]], _CALLS] = _count()
    failures: Annotated[Counter[tuple[str, str, str]], _FAILURES] = _count()
    hedges: Annotated[Counter[str], _HEDGES] = _count()
    retries: Annotated[Counter[str], _RETRIES] = _count()
    spilled: Annotated[Counter[tuple[str, str]], _SPILLED] = _count()


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
