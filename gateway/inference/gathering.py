"""Gathers missed items of one-item requests. The items of one iteration become one work.

Claims, limits, dispatch and the cache then take each step once for all gathered items.
"""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from gateway.cache.key import CacheKey
from gateway.inference.coalescing import Flights
from gateway.inference.outcomes import LOST
from gateway.inference.prepared_request import PreparedRequest
from gateway.tasks import CallbackBatch, log_failure
from gateway.types import CacheDirectives, Caller
from gateway.upstream.shared_call import MAX_BYTES, MAX_ITEMS

_PLAIN = CacheDirectives()
# Deadlines may differ by a 256th of a second: the earliest then holds for all.
_DEADLINES = 256
_Kind = tuple[int, int, int, int, bool]


class _Together(msgspec.Struct, eq=False):
    """Holds similar one-item requests, as many as fit into one call of a backend.

    Items, keys and trace contexts have the same indexes. `prepared` and `caller` come from the
    first request, `deadline` is the earliest, and `size` is the bytes of all items.
    """

    prepared: PreparedRequest
    caller: Caller
    deadline: float
    items: list[bytes] = []
    keys: list[CacheKey] = []
    contexts: list[str] = []
    size: int = 0

    def merged(self) -> PreparedRequest:
        """Return the gathered requests as one request."""
        first = self.prepared
        if len(self.items) == 1:
            return first
        request = replace(first.request, items=tuple(self.items))
        return PreparedRequest(request=request, plan=first.plan, keys=self.keys)

    def merged_caller(self) -> Caller:
        """Return one caller that stands for all callers."""
        return replace(self.caller, deadline=self.deadline, traceparent="")

    def flight_keys(self) -> list[CacheKey]:
        """Return the keys of the requests' flights."""
        first = self.prepared
        return replace(first, keys=self.keys).flight_keys


class MissGatherer:
    """Gathers the requests of a batch of callbacks, and has them computed at its end.

    By `compute`, which is given the indexes of all items, and their trace contexts where there are
    any. `records` tells whether a trace context is recorded: such requests are left alone, as each
    of their steps has a span.
    """

    def __init__(
        self,
        *,
        compute: Callable[[PreparedRequest, Caller, range, list[str]], object],
        flights: Flights,
        records: Callable[[str], bool],
        batch: CallbackBatch,
    ) -> None:
        self._batch = batch
        self._compute = compute
        self._flights = flights
        self._records = records
        self._open: dict[_Kind, _Together] = {}
        self._all: list[_Together] = []

    def add(self, prepared: PreparedRequest, caller: Caller) -> bool:
        """Add a request that leads its item, or return `False` if it must be computed alone.

        Such a request cannot give up a part of its work, because it ends with its only item.
        """
        keys, deadline, context = prepared.keys, caller.deadline, caller.traceparent
        if len(keys) > 1 or caller.directives != _PLAIN:
            return False
        if context and self._records(context):
            return False
        # By identity: members of an enumeration are hashed by a method in Python.
        ids = (id(prepared.plan), id(caller.principal), id(caller.criticality))
        kind = (*ids, int(deadline * _DEADLINES), prepared.request.truncate)
        (item,) = prepared.request.items
        size = len(item)
        together = self._open.get(kind)
        if together is None or not (
            len(together.items) < MAX_ITEMS and together.size + size <= MAX_BYTES
        ):
            if not self._all:
                self._batch.defer(self._start)
            together = self._open[kind] = _Together(prepared, caller, deadline)
            self._all.append(together)
        elif deadline < together.deadline:
            together.deadline = deadline
        together.items.append(item)
        together.keys.append(keys[0])
        together.contexts.append(context)
        together.size += size
        return True

    def _start(self) -> None:
        gathered, self._all = self._all, []
        self._open.clear()
        for together in gathered:
            try:
                contexts = together.contexts
                given = contexts if any(contexts) else []
                is_alone = len(contexts) == 1 and not given
                caller = together.caller if is_alone else together.merged_caller()
                self._compute(together.merged(), caller, range(len(contexts)), given)
            except Exception as bug:  # noqa: BLE001 - nobody may wait for the items without end
                log_failure(bug)
                keys = together.flight_keys()
                self._flights.settle_all(keys, [(place, LOST) for place in range(len(keys))])
