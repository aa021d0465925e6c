"""Tracks one call of a backend: the items that it may answer, and the verdict on the backend."""

import asyncio
from collections.abc import Hashable, Iterable, Sequence

from sluicegate.gateway.dispatch import failures
from sluicegate.gateway.dispatch.hedging import Latencies
from sluicegate.gateway.dispatch.work import OpenItem, Work
from sluicegate.gateway.routing.endpoint_state import CallVerdict
from sluicegate.gateway.telemetry.spans import Span
from sluicegate.gateway.types import BackendId, Endpoint, ItemFailure, ItemOutcome, Source
from sluicegate.gateway.upstream.base import CallFailed, Cause, StartedCall
from sluicegate.wire.protocol import Call, CallItem, Done, Failed

# A backend admits so many items of a call at once, and a body of this size is one write.
MAX_ITEMS = 256
MAX_BYTES = 256 * 1024
# A member of an enumeration is looked up by a method in Python 3.11.
_COMPUTED = Source.COMPUTED
# The backend refuses our token.
_UNAUTHORIZED = frozenset({401, 403})


class BackendCall:
    """Items tried at `endpoint`; `tried` are all backends that the items were sent to so far.

    The items of a call that `is_shared` belong to independent requests, one item each.
    Defaults are class attributes, as most calls never write them.
    """

    queueing = 0.0
    """Predicted seconds of work that the backend had before this call when the call began."""
    has_full_timeout = False
    """Whether silence of the backend would have been noticed before the deadline."""
    phase_began = 0.0
    is_sent = False
    started_call: StartedCall | None = None
    span: Span | None = None
    """Is around a call that is recorded."""
    key: Hashable = None
    """Names a call that may be joined until it is sent: the endpoint, and the kind of its items."""
    hedge_timer: asyncio.TimerHandle | None = None
    expiry_timer: asyncio.TimerHandle | None = None
    in_flight = 0
    """Items that count as in flight at the backend."""
    bytes = 0
    answered = 0
    rows = 0
    _is_useful = False
    _faults = 0
    """Items that the backend is to blame for."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        work: Work,
        latencies: Latencies,
        began: float,
        own: int = 1,
        is_shared: bool = False,
        tried: tuple[BackendId, ...] = (),
    ) -> None:
        self.endpoint = endpoint
        self.work = work
        """The work of one of the items. All have the model, task and parameters in common."""
        self.latencies = latencies
        """The latencies of all items of the model and task."""
        self.began = began
        self.own = own
        """How many items at the backend are of the request."""
        self.is_shared = is_shared
        self.tried = (*tried, endpoint.backend)
        self.items: list[OpenItem] = []
        self.waiting: dict[OpenItem, OpenItem] = {}
        self.duplicated: dict[OpenItem, OpenItem] = {}
        """Items that are tried at a second backend as well, and may still be answered here."""
        self.failed: list[tuple[OpenItem, ItemFailure]] = []
        """Items that failed and are not tried elsewhere yet."""

    def add(self, items: Sequence[OpenItem]) -> int:
        """Have the call, which was not sent yet, answer these items, too. Return their number.

        A shared call takes the first items, as many as there is room for.
        """
        size, before = self.bytes, len(self.items)
        for item in items:
            size += len(item.body)
            is_full = len(self.items) >= MAX_ITEMS or size > MAX_BYTES
            if is_full and self.is_shared and self.items:
                break
            self.bytes = size
            item.calls += 1
            self.items.append(item)
            self.waiting[item] = item
        count = len(self.items) - before
        self.in_flight += count
        return count

    def message(self, now: float, *, round_trip: float, traceparent: str) -> Call:
        """Return the message to send `now`. `round_trip` shortens the time that items have left."""
        work, info = self.work, self.work.model.info
        items: list[CallItem] = []
        for item in self.items:
            own = item.work
            left = own.deadline - now
            # One slow probe does not mean that calls are slow.
            left = left - round_trip if left > 2 * round_trip else left / 2
            context = traceparent or own.traceparent
            items.append(
                CallItem(body=item.body, remaining=left, scope=own.scope)
                if not context
                else _traced(item, left, context)
            )
        return Call(
            model=info.name,
            revision=info.revision,
            profile=info.profile,
            task=work.task,
            parameters=work.parameters,
            items=items,
            lane=work.lane,
            truncate=work.truncate,
            atomic=work.atomic and not self.is_shared and len(items) > 1,
        )

    def take(self, frames: Sequence[Done | Failed]) -> list[tuple[OpenItem, ItemOutcome]]:
        """Return the outcomes of the items that `frames` end.

        Unknown items and items that were answered before are left out. So are items that may
        succeed elsewhere, which are now in `failed`.
        """
        ended: list[tuple[OpenItem, ItemOutcome]] = []
        items, waiting, duplicated = self.items, self.waiting, self.duplicated
        count, answered, rows = len(items), self.answered, self.rows
        region = self.endpoint.region
        for frame in frames:
            place = frame.index
            if not 0 <= place < count:
                continue
            item = items[place]
            if waiting.pop(item, None) is None and not (
                duplicated and duplicated.pop(item, None) is not None
            ):
                continue
            item.calls -= 1
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
                    is_partial=frame.is_partial,
                    region=region,
                )
                ended.append((item, outcome))
            elif frame.retryable:
                self._faults += failures.blames_backend(frame)
                self.failed.append((item, failures.of_item(frame)))
            else:
                failure = failures.of_item(frame)
                failed = ItemOutcome(
                    source=Source.FAILED, failure=failure, arm=frame.arm, region=region
                )
                ended.append((item, failed))
        self.answered, self.rows = answered, rows
        self._is_useful = self._is_useful or bool(ended)
        return ended

    def ended_places(self) -> int:
        """Return how many items have ended since the last time. They do not wait for the others."""
        left = len(self.waiting) + len(self.duplicated)
        ended, self.in_flight = self.in_flight - left, left
        return ended

    def open_items(self) -> list[OpenItem]:
        """Return the open items that the call may still answer."""
        return [item for item in (*self.waiting, *self.duplicated) if item.outcome is None]

    def holds_any(self, items: Sequence[OpenItem]) -> bool:
        """Return whether the call may still answer one of the items."""
        return not (
            self.waiting.keys().isdisjoint(items) and self.duplicated.keys().isdisjoint(items)
        )

    def is_only_hope_of(self, item: OpenItem) -> bool:
        """Return whether the item is open, and no other call may still answer it."""
        holds = item in self.waiting or item in self.duplicated
        return item.outcome is None and item.calls == holds

    def duplicate(self, items: Iterable[OpenItem], endpoint: Endpoint) -> None:
        """Note that items that wait here are tried at `endpoint` as well."""
        self.tried = (*self.tried, endpoint.backend)
        for item in items:
            self.duplicated[item] = self.waiting.pop(item)

    def end(self) -> None:
        """Wait for no item any more."""
        for item in (*self.waiting, *self.duplicated):
            item.calls -= 1
        self.waiting.clear()
        self.duplicated.clear()

    def verdict(self) -> CallVerdict:
        """Judge the backend by a call that ended with a report.

        The items may be of many requests: answers to a few do not make up for the others.
        """
        faults = self._faults + len(self.waiting)
        if faults and (2 * faults >= len(self.items) or not self._is_useful):
            return CallVerdict.FAILED
        return CallVerdict.OK if self._is_useful else CallVerdict.UNDECIDED


def _traced(item: OpenItem, remaining: float, context: str) -> CallItem:
    parent, _, state = context.partition(" ")
    return CallItem(
        body=item.body,
        remaining=remaining,
        scope=item.work.scope,
        traceparent=parent,
        tracestate=state,
    )


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
