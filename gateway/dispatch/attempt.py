"""Tracks one call of a backend: its items without an outcome, and the verdict on the backend."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from backends.protocol import Call, CallItem, Done, Failed
from gateway.dispatch import failures
from gateway.dispatch.work import Work, WorkItem
from gateway.routing.member import CallVerdict
from gateway.types import BackendId, Endpoint, ItemFailure, ItemOutcome, Source
from gateway.upstream.base import CallFailed, Cause, StartedCall


class Attempt:
    """Items tried at `endpoint`; `tried` are all backends that they were sent to, so far.

    Defaults are class attributes, as most attempts never write them.
    """

    started = 0.0
    has_full_timeout = False
    """Whether silence of the backend would have been noticed before the deadline."""
    started_call: StartedCall | None = None
    span: AbstractContextManager[str] = nullcontext("")
    """Is around the call."""
    hedge_timer: asyncio.TimerHandle | None = None
    answered = 0
    rows = 0
    _is_useful = False
    _is_to_blame = False

    def __init__(
        self, endpoint: Endpoint, items: Sequence[WorkItem], before: tuple[BackendId, ...] = ()
    ) -> None:
        self.endpoint = endpoint
        self.items = items
        self.tried = (*before, endpoint.backend)
        self.waiting = {item.index: item for item in items}
        self.duplicated: dict[int, WorkItem] = {}
        """Items that are tried at a second backend as well, and may still be answered here."""
        self.failed: list[tuple[WorkItem, ItemFailure]] = []
        """Items that failed and are not tried elsewhere yet."""

    def call(self, work: Work, *, remaining: float, traceparent: str) -> Call:
        """Return the call of the items of `work`, which have `remaining` seconds each."""
        parent, _, state = traceparent.partition(" ")
        info = work.model.info
        return Call(
            model=info.name,
            revision=info.revision,
            profile=info.profile,
            task=work.task,
            parameters=work.parameters,
            items=[
                CallItem(
                    body=item.body,
                    remaining=remaining,
                    scope=item.scope,
                    traceparent=parent,
                    tracestate=state,
                )
                for item in self.items
            ],
            lane=work.lane,
            truncate=work.truncate,
            atomic=work.atomic and len(self.items) > 1,
        )

    def take(self, frame: Done | Failed) -> tuple[WorkItem, ItemOutcome] | None:
        """Return the item that `frame` ends, and its outcome.

        `None` when it ends none: the item may succeed elsewhere and is now in `failed`, or is
        unknown, or was answered before.
        """
        if not 0 <= frame.index < len(self.items):
            return None
        item = self.items[frame.index]
        is_waited_for = self.waiting.pop(item.index, None) is not None
        is_duplicated = bool(self.duplicated) and self.duplicated.pop(item.index, None) is not None
        if not is_waited_for and not is_duplicated:
            return None
        if isinstance(frame, Done):
            self._is_useful = True
            self.answered += 1
            self.rows += frame.rows
            return item, ItemOutcome(
                source=Source.COMPUTED,
                result=frame.result,
                rows=frame.rows,
                tokens=frame.tokens,
                known_rows=frame.known,
                input_tokens=frame.tokens + frame.known_tokens,
                truncated_from=frame.truncated_from,
                arm=frame.arm,
                shadow=frame.shadow,
            )
        failure = failures.of_item(frame)
        if not frame.retryable:
            self._is_useful = True
            return item, ItemOutcome(source=Source.FAILED, failure=failure, arm=frame.arm)
        self._is_to_blame |= failures.blames_backend(frame)
        self.failed.append((item, failure))
        return None

    def duplicate(self, endpoint: Endpoint) -> list[WorkItem]:
        """Return the waiting items, to be tried at `endpoint` as well."""
        items = list(self.waiting.values())
        self.tried = (*self.tried, endpoint.backend)
        self.duplicated |= self.waiting
        self.waiting.clear()
        return items

    def end(self) -> None:
        """Wait for no item any more."""
        self.waiting.clear()
        self.duplicated.clear()

    def holds(self, index: int) -> bool:
        """Tell whether the item may still be answered here."""
        return index in self.waiting or index in self.duplicated

    def verdict(self) -> CallVerdict:
        """Judge the backend by a call that ended with a report."""
        if self._is_useful:
            return CallVerdict.OK
        return CallVerdict.FAILED if self.waiting or self._is_to_blame else CallVerdict.UNDECIDED


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
