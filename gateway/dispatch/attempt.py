"""Tracks one call of a backend: its items without an outcome, and the verdict on the backend."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from operator import attrgetter

from gateway.dispatch import failures
from gateway.dispatch.work import Work, WorkItem
from gateway.routing.endpoint_state import CallVerdict
from gateway.routing.fleet import Fleet
from gateway.types import BackendId, Endpoint, ItemFailure, ItemOutcome, Source
from gateway.upstream.base import CallFailed, Cause, StartedCall
from wire.protocol import Call, CallItem, Done, Failed

# A member of an enumeration is looked up by a method in Python 3.11.
_COMPUTED = Source.COMPUTED
_context = attrgetter("traceparent")
_index = attrgetter("index")


class Attempt:
    """Items tried at `endpoint`; `tried` are all backends that they were sent to, so far.

    Defaults are class attributes, as most attempts never write them.
    """

    started = began = 0.0
    queueing = 0.0
    """Seconds of work of others that were before it when it started."""
    has_full_timeout = False
    """Whether silence of the backend would have been noticed before the deadline."""
    started_call: StartedCall | None = None
    span: AbstractContextManager[str] | None = None
    """Is around a call that is recorded."""
    hedge_timer: asyncio.TimerHandle | None = None
    answered = 0
    rows = 0
    _is_useful = False
    _faults = 0
    """Items that the backend is to blame for."""

    def __init__(
        self, endpoint: Endpoint, items: Sequence[WorkItem], before: tuple[BackendId, ...] = ()
    ) -> None:
        self.endpoint = endpoint
        self.items = items
        self.tried = (*before, endpoint.backend)
        self.waiting = dict(zip(map(_index, items), items, strict=True))
        self.duplicated: dict[int, WorkItem] = {}
        """Items that are tried at a second backend as well, and may still be answered here."""
        self.in_flight = len(items)
        """Items that count as in flight at the backend."""
        self.failed: list[tuple[WorkItem, ItemFailure]] = []
        """Items that failed and are not tried elsewhere yet."""

    def call(self, work: Work, *, remaining: float, traceparent: str) -> Call:
        """Return the call of the items of `work`, which have `remaining` seconds each."""
        info = work.model.info
        return Call(
            model=info.name,
            revision=info.revision,
            profile=info.profile,
            task=work.task,
            parameters=work.parameters,
            items=[
                _call_item(item, remaining, traceparent or item.traceparent) for item in self.items
            ]
            if traceparent or (work.is_gathered and any(map(_context, self.items)))
            else [
                CallItem(body=item.body, remaining=remaining, scope=item.scope)
                for item in self.items
            ],
            lane=work.lane,
            truncate=work.truncate,
            atomic=work.atomic and len(self.items) > 1,
        )

    def take(self, frames: Sequence[Done | Failed]) -> list[tuple[int, ItemOutcome]]:
        """Return the outcomes of the items that `frames` end, with the items' indexes.

        None of an item that may succeed elsewhere and is now in `failed`, that is unknown, or that
        was answered before.
        """
        ended: list[tuple[int, ItemOutcome]] = []
        items, waiting, duplicated = self.items, self.waiting, self.duplicated
        count, answered, rows = len(items), self.answered, self.rows
        for frame in frames:
            place = frame.index
            if not 0 <= place < count:
                continue
            index = items[place].index
            if waiting.pop(index, None) is None and not (
                duplicated and duplicated.pop(index, None) is not None
            ):
                continue
            if isinstance(frame, Done):
                answered += 1
                rows += frame.rows
                outcome = ItemOutcome(
                    source=_COMPUTED,
                    result=frame.result,
                    rows=frame.rows,
                    tokens=frame.tokens,
                    known_rows=frame.known,
                    input_tokens=frame.tokens + frame.known_tokens,
                    truncated_from=frame.truncated_from,
                    arm=frame.arm,
                    shadow=frame.shadow,
                )
                ended.append((index, outcome))
            elif frame.retryable:
                self._faults += failures.blames_backend(frame)
                self.failed.append((items[place], failures.of_item(frame)))
            else:
                failure = failures.of_item(frame)
                failed = ItemOutcome(source=Source.FAILED, failure=failure, arm=frame.arm)
                ended.append((index, failed))
        self.answered, self.rows = answered, rows
        self._is_useful = self._is_useful or bool(ended)
        return ended

    def free_places(self, fleet: Fleet, answered: int, took: float) -> None:
        """Let the fleet know of requests that have ended: they do not wait for the others."""
        left = len(self.waiting) + len(self.duplicated)
        fleet.answered(self.endpoint, answered, took, ended=self.in_flight - left)
        self.in_flight = left

    def waiting_of(self, wanted: set[int]) -> list[WorkItem]:
        """Return the waiting ones of the items whose indexes are `wanted`."""
        return [item for index, item in self.waiting.items() if index in wanted]

    def duplicate(self, endpoint: Endpoint, items: Sequence[WorkItem]) -> None:
        """Note that these waiting items are tried at `endpoint` as well."""
        self.tried = (*self.tried, endpoint.backend)
        for item in items:
            self.duplicated[item.index] = self.waiting.pop(item.index)

    def end(self) -> None:
        """Wait for no item any more."""
        self.waiting.clear()
        self.duplicated.clear()

    def holds(self, index: int) -> bool:
        """Tell whether the item may still be answered here."""
        return index in self.waiting or index in self.duplicated

    def verdict(self) -> CallVerdict:
        """Judge the backend by a call that ended with a report.

        The items may be of many requests: answers to a few do not make up for the others.
        """
        faults = self._faults + len(self.waiting)
        if faults and (2 * faults >= len(self.items) or not self._is_useful):
            return CallVerdict.FAILED
        return CallVerdict.OK if self._is_useful else CallVerdict.UNDECIDED


def _call_item(item: WorkItem, remaining: float, traceparent: str) -> CallItem:
    parent, _, state = traceparent.partition(" ")
    return CallItem(
        body=item.body,
        remaining=remaining,
        scope=item.scope,
        traceparent=parent,
        tracestate=state,
    )


# The backend refuses our token.
_UNAUTHORIZED = frozenset({401, 403})


def is_changed(error: CallFailed) -> bool:
    """Tell whether the backend serves other models or revisions than the fleet knows of."""
    return error.cause is Cause.REFUSED and error.status in failures.CHANGED


def is_misplaced(error: CallFailed) -> bool:
    """Tell whether another backend may take the call, whatever `retryable` says."""
    return error.cause is Cause.REFUSED and error.status in failures.CHANGED | _UNAUTHORIZED


def verdict_on(error: CallFailed, *, has_full_timeout: bool) -> CallVerdict:
    """Judge the backend by a call that failed; silence counts after a full time-out only."""
    if error.cause is Cause.REFUSED and error.status not in _UNAUTHORIZED:
        return CallVerdict.UNDECIDED
    if error.cause is Cause.TIMED_OUT and not has_full_timeout:
        return CallVerdict.UNDECIDED
    return CallVerdict.FAILED
