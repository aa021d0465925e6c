"""Gathers missed items of requests of one item, so that those of one iteration are one work.

Claims, limits, dispatch and the cache then take their steps once for all of them.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

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


class LedRequest(msgspec.Struct, frozen=True):
    """A request of one item, which its caller leads."""

    prepared: PreparedRequest
    caller: Caller


class _Together(NamedTuple):
    """Requests of one item as one request, with a caller in the place of all of theirs.

    `contexts` are the trace contexts of the items, empty where none has one.
    """

    prepared: PreparedRequest
    caller: Caller
    contexts: list[str]


class MissGatherer:
    """Gathers the requests of a batch of callbacks, and has them computed at its end.

    By `compute`, which is given the indexes of all items. `records` tells whether a trace context
    is recorded: such requests are left alone, as each of their steps has a span.
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
        self._led: dict[_Kind, list[LedRequest]] = {}

    def add(self, prepared: PreparedRequest, caller: Caller) -> bool:
        """Add a request whose items are led, `False` where it is to be computed alone.

        Nothing of it can be given up: with its only item, it has ended.
        """
        if len(prepared.keys) > 1 or caller.directives != _PLAIN:
            return False
        if caller.traceparent and self._records(caller.traceparent):
            return False
        if not self._led:
            self._batch.defer(self._start)
        # By identity: members of an enumeration are hashed by a method in Python.
        ids = (id(prepared.plan), id(caller.principal), id(caller.criticality))
        kind = (*ids, int(caller.deadline * _DEADLINES), prepared.request.truncate)
        self._led.setdefault(kind, []).append(LedRequest(prepared, caller))
        return True

    def _start(self) -> None:
        gathered, self._led = self._led, {}
        for alike in gathered.values():
            for requests in _cut(alike):
                try:
                    together = _merge(requests)
                    items = range(len(requests))
                    self._compute(together.prepared, together.caller, items, together.contexts)
                except Exception as bug:  # noqa: BLE001 - nobody may wait for the items without end
                    log_failure(bug)
                    keys = [request.prepared.flight_keys[0] for request in requests]
                    self._flights.settle_all(keys, [(place, LOST) for place in range(len(keys))])


def _cut(requests: list[LedRequest]) -> Iterator[list[LedRequest]]:
    """Cut requests into such as one call of a backend has room for."""
    start = size = 0
    for place, request in enumerate(requests):
        own = len(request.prepared.request.items[0])
        size += own
        if place > start and (size > MAX_BYTES or place - start >= MAX_ITEMS):
            yield requests[start:place]
            start, size = place, own
    yield requests[start:]


def _merge(requests: list[LedRequest]) -> _Together:
    first = requests[0]
    contexts = [request.caller.traceparent for request in requests]
    given = contexts if any(contexts) else []
    if len(requests) == 1 and not given:
        return _Together(first.prepared, first.caller, [])
    each = [request.prepared for request in requests]
    items = tuple([prepared.request.items[0] for prepared in each])
    prepared = PreparedRequest(
        request=replace(first.prepared.request, items=items),
        plan=first.prepared.plan,
        keys=[prepared.keys[0] for prepared in each],
    )
    deadline = min([request.caller.deadline for request in requests])
    return _Together(prepared, replace(first.caller, deadline=deadline, traceparent=""), given)
