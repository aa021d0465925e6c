"""Gathers works whose items are of several requests, those of one event-loop iteration, into one.

So the steps of a dispatch (shedding, choosing backends, calls, deadlines) are taken once for many
requests. Each item goes to the backend that it would go to alone, and is settled for its request.
"""

from collections.abc import Sequence
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from gateway.dispatch import failures
from gateway.dispatch.request_dispatch import DispatchContext, RequestDispatch
from gateway.dispatch.work import Outcomes, Settle, Work, WorkItem
from gateway.tasks import CallbackBatch, log_failure
from gateway.types import ItemOutcome, Source
from gateway.upstream.shared_call import MAX_BYTES, MAX_ITEMS

# Deadlines may differ by so many seconds from the first: the earliest then holds for all.
_SPREAD = 0.002
_body = attrgetter("body")
WorkKind = tuple[int, int, bytes, str, bool, int]


def kind_of(work: Work) -> WorkKind:
    """Return what works must share to be gathered; it is valid while `work` exists."""
    # By identity: models cannot be hashed, and members of enumerations are by a method in Python.
    model, task, criticality = id(work.model), id(work.task), id(work.criticality)
    return (model, task, work.parameters, work.lane, work.truncate, criticality)


class GatheredPart(msgspec.Struct, eq=False):
    """Implements `StartedWork` for one of the works that were gathered to a `whole`."""

    whole: "GatheredWork"
    work: Work
    settle: Settle
    traceparent: str
    first: int = 0
    """The place of its first item among those of all."""
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Settle the items as cancelled; those of others go on."""
        self.whole.cancel(self)


class GatheredWork:
    """Works that will be one dispatch, which settles each on its own."""

    def __init__(self, deadline: float) -> None:
        self._first_deadline = self._deadline = deadline
        self._bytes = self._count = 0
        self._parts: list[GatheredPart] = []
        self._owners: list[GatheredPart] = []
        self._open = 0
        self._dispatch: RequestDispatch | None = None

    def has_room(self, work: Work, deadline: float) -> bool:
        """Tell whether `work`, which is of this kind, may be added."""
        return (
            self._count + len(work.items) <= MAX_ITEMS
            and abs(deadline - self._first_deadline) <= _SPREAD
            and self._bytes + _size(work) <= MAX_BYTES
        )

    def add(self, work: Work, *, deadline: float, settle: Settle, traceparent: str) -> GatheredPart:
        """Add `work`; the result cancels it alone."""
        part = GatheredPart(self, work, settle, traceparent)
        self._parts.append(part)
        self._deadline = min(self._deadline, deadline)
        self._count += len(work.items)
        self._bytes += _size(work)
        return part

    def start(self, context: DispatchContext) -> None:
        """Dispatch what was not cancelled."""
        parts, self._parts = [part for part in self._parts if not part.is_cancelled], []
        if not parts:
            return
        only = parts[0]
        if len(parts) == 1:
            work, settle, traceparent = only.work, only.settle, only.traceparent
        else:
            items = self._numbered(parts)
            work = replace(only.work, items=items, atomic=False, is_gathered=True, principal=None)
            settle, traceparent = self._settle, ""
        self._dispatch = RequestDispatch(
            context, work, deadline=self._deadline, settle=settle, traceparent=traceparent
        )
        self._dispatch.start()

    def cancel(self, part: GatheredPart) -> None:
        """Settle the items of `part` as cancelled, and cancel the calls once nobody waits."""
        count = len(part.work.items)
        if self._dispatch is None:
            if part in self._parts and not part.is_cancelled:
                part.is_cancelled = True
                outcome = ItemOutcome(source=Source.FAILED, failure=failures.CANCELLED)
                part.settle([(item.index, outcome) for item in part.work.items])
        elif self._owners:
            self._dispatch.cancel_items(range(part.first, part.first + count))
        else:
            self._dispatch.cancel()

    def _numbered(self, parts: Sequence[GatheredPart]) -> tuple[WorkItem, ...]:
        """Return the items of all parts, each with a number in the place of its index."""
        items: list[WorkItem] = []
        for part in parts:
            part.first = len(items)
            items += [
                replace(item, index=number, traceparent=part.traceparent or item.traceparent)
                for number, item in enumerate(part.work.items, part.first)
            ]
            self._owners += [part] * len(part.work.items)
        self._open = len(items)
        return tuple(items)

    def _settle(self, outcomes: Outcomes) -> None:
        shares: dict[GatheredPart, list[tuple[int, ItemOutcome]]] = {}
        owners = self._owners
        for number, outcome in outcomes:
            part = owners[number]
            index = part.work.items[number - part.first].index
            shares.setdefault(part, []).append((index, outcome))
        self._open -= len(outcomes)
        if not self._open:
            # Cycles are left to the garbage collector, at its price.
            self._dispatch, self._owners = None, []
        for part, share in shares.items():
            try:
                part.settle(share)
            except Exception as bug:  # noqa: BLE001 - one request's fault must not cost another its answer
                log_failure(bug)


class Gatherer:
    """Gathers the works of a batch of callbacks, and dispatches them at its end."""

    def __init__(self, context: DispatchContext, batch: CallbackBatch) -> None:
        self._context = context
        self._batch = batch
        self._open: dict[WorkKind, GatheredWork] = {}
        self._all: list[GatheredWork] = []

    def __len__(self) -> int:
        return len(self._all)

    def add(self, work: Work, *, deadline: float, settle: Settle, traceparent: str) -> GatheredPart:
        """Add a work."""
        kind = kind_of(work)
        gathered = self._open.get(kind)
        if gathered is None or not gathered.has_room(work, deadline):
            if not self._all:
                self._batch.defer(self.start)
            gathered = self._open[kind] = GatheredWork(deadline)
            self._all.append(gathered)
        return gathered.add(work, deadline=deadline, settle=settle, traceparent=traceparent)

    def start(self) -> None:
        """Dispatch all that was gathered."""
        works, self._all = self._all, []
        self._open.clear()
        for work in works:
            work.start(self._context)


def _size(work: Work) -> int:
    return sum(map(len, map(_body, work.items)))
