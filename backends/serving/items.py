"""Answers one item of a call: decodes it, runs its algorithm in its time, returns an outcome."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from backends.batching.shared import RowCaller
from backends.errors import BackendError, BadCall, DeadlineExceeded, ItemRefused
from backends.pipelines.ask import AlgorithmContext, encode_result
from backends.protocol import (
    CALL_PATH,
    ITEMS,
    PARAMETERS,
    UNREADABLE,
    Call,
    CallItem,
    Done,
    Failed,
    Task,
)
from backends.serving.arms import first_label
from backends.serving.call_work import CallWork
from backends.serving.core import ModelSetEntry, ServingCore
from backends.telemetry.spans import NO_SPAN, Span, Tracing

_log = logging.getLogger(__name__)
# No item takes this long; a timer needs a finite time.
_LONGEST = 3600.0
# A caller that leaves so few seconds before its deadline leaves because of it.
_LATE_CANCELLATION = 0.05


class Decoders:
    """Holds the decoders of parameters and items, made once."""

    def __init__(self) -> None:
        self.call = msgspec.msgpack.Decoder(Call)
        self.parameters: dict[Task, msgspec.msgpack.Decoder[Any]] = {
            task: msgspec.msgpack.Decoder(kind) for task, kind in PARAMETERS.items()
        }
        self.items: dict[Task, msgspec.msgpack.Decoder[Any]] = {
            task: msgspec.msgpack.Decoder(kind) for task, kind in ITEMS.items()
        }


class ItemAnswerer:
    """Answers the items of one call."""

    def __init__(
        self,
        *,
        core: ServingCore,
        entry: ModelSetEntry,
        work: CallWork,
        call: Call,
        decoders: Decoders,
        received: float,
        clock: Callable[[], float],
        tracing: Tracing,
    ) -> None:
        self._core = core
        self._call = call
        self._algorithm = entry.served_model.algorithms[call.task]
        self._pipelines = entry.model_set.pipelines
        self._work = work
        self._decoder = decoders.items[call.task]
        self._received = received
        self._clock = clock
        self._tracing = tracing
        try:
            self._parameters = decoders.parameters[call.task].decode(call.parameters)
        except UNREADABLE as error:
            raise BadCall(f"the parameters are none of `{call.task}`: {error}") from None

    async def answer(self, index: int, item: CallItem) -> Done | Failed:
        """Return the item's outcome; only a cancellation is raised."""
        span = self._start_span(item)
        caller = RowCaller(
            scope=item.scope,
            deadline=self._received + item.remaining,
            span=span,
            lane=self._call.lane,
            truncate=self._call.truncate,
            hosted=self._work.hosted,
        )
        outcome: Done | Failed | None = None
        try:
            remaining = caller.deadline - self._clock()
            caller.reservation = self._work.reservation(index, item, time_left=remaining)
            result = await self._run(item, caller)
            outcome = Done(
                index=index,
                result=result,
                rows=caller.rows,
                tokens=caller.tokens,
                known=caller.cached,
                truncated_from=caller.truncated_from,
                arm=self._arm(caller),
                shadow=caller.shadow,
            )
        except asyncio.CancelledError:
            span.end("client_gone")
            raise
        except BackendError as error:
            outcome = _failed(index, error, self._arm(caller))
        except Exception:  # noqa: BLE001 - an error of one item must not take the others with it
            _log.exception("an item failed unexpectedly", extra={"model": self._call.model})
            unexpected = BackendError("the backend failed on this item")
            outcome = _failed(index, unexpected, self._arm(caller))
        finally:
            self._end(index, caller, outcome)
        span.end(outcome.code if isinstance(outcome, Failed) else None)
        return outcome

    def _end(self, index: int, caller: RowCaller, outcome: Done | Failed | None) -> None:
        """Count how an item ended, and learn from it; without an outcome it was cancelled."""
        kind = _kind(outcome)
        self._core.count_item(self._call, kind)
        if caller.arm is not None and self._arm(caller):
            self._core.arms.count(caller.arm, kind, self._clock() - self._received, caller.label)
        if outcome is None:
            # The caller gives up at the moment that the deadline passes here.
            is_late = caller.deadline - self._clock() < _LATE_CANCELLATION
        else:
            is_late = isinstance(outcome, Failed) and outcome.code == DeadlineExceeded.code
        self._work.end(
            index,
            brought=caller.work,
            is_done=isinstance(outcome, Done),
            late_rows=caller.rows + caller.wasted if is_late else None,
        )

    def _arm(self, caller: RowCaller) -> str:
        """Return the revision of the called model that answers, not those of models below."""
        if caller.arm is None or caller.arm[0] != self._call.model:
            return ""
        return caller.arm[1]

    def _start_span(self, item: CallItem) -> Span:
        if not self._tracing.records:
            return NO_SPAN
        carrier = {"traceparent": item.traceparent, "tracestate": item.tracestate}
        return self._tracing.call(carrier, {"http.request.method": "POST", "url.path": CALL_PATH})

    async def _run(self, item: CallItem, caller: RowCaller) -> bytes:
        remaining = caller.deadline - self._clock()
        # Negated, so that NaN counts as over, too.
        if not remaining > 0:
            raise DeadlineExceeded(
                "the time of the item was over before it began",
                retry_after=self._work.backlog(),
            )
        try:
            body = self._decoder.decode(item.body)
        except UNREADABLE as error:
            raise ItemRefused("bad_item", f"the item is none of this task: {error}") from None
        ask = AlgorithmContext(self._pipelines, caller)
        try:
            async with asyncio.timeout(min(remaining, _LONGEST)):
                answer = await self._algorithm.run(body, self._parameters, ask)
                if caller.arm is not None:
                    caller.label = first_label(answer)
                return encode_result(answer)
        except TimeoutError:
            raise DeadlineExceeded(
                "the time of the item is over", retry_after=self._work.backlog()
            ) from None


def _kind(outcome: Done | Failed | None) -> str:
    """Return the label under which an item's end is counted."""
    if outcome is None:
        return "cancelled"
    if isinstance(outcome, Done):
        return "done"
    if outcome.status == ItemRefused.status:
        return "refused"
    return "expired" if outcome.code == DeadlineExceeded.code else "failed"


def _failed(index: int, error: BackendError, arm: str) -> Failed:
    return Failed(
        index=index,
        status=error.status,
        code=error.code,
        detail=str(error),
        retryable=error.retryable,
        retry_after=error.retry_after,
        arm=arm,
    )
