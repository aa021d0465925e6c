"""Answers one item of a call: decodes it, runs its algorithm, and returns its outcome."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import msgspec
import numpy as np

from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.errors import (
    BackendError,
    BadCall,
    DeadlineExceeded,
    ItemRefused,
    reported,
)
from sluicegate.backends.pipelines.ask import LONGEST, AlgorithmContext, encode_result
from sluicegate.backends.pipelines.token_work import run_token_work
from sluicegate.backends.serving.call_work import CallWork
from sluicegate.backends.serving.core import ModelSetEntry, ServingCore
from sluicegate.backends.serving.item_memory import check_fits, item_bytes
from sluicegate.backends.serving.revision_counts import first_label
from sluicegate.backends.telemetry.spans import NO_SPAN, Span, Tracing
from sluicegate.wire.protocol import (
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

# A caller that disconnects at most this many seconds before its deadline counts as late.
_LATE_CANCELLATION = 0.05
# Encoding so many numbers as JSON takes as long as processing one token.
_VALUES_PER_TOKEN = 64


Outcome = Done | Failed
# How an item ended: the label `outcome` of the metric `items_total`.
_Kind = Literal["done", "failed", "refused", "expired", "cancelled"]


class Decoders:
    """Holds the decoders of calls, parameters and items, which are made once."""

    def __init__(self) -> None:
        self.call = msgspec.msgpack.Decoder(Call)
        self.parameters: dict[Task, msgspec.msgpack.Decoder[Any]] = {
            task: msgspec.msgpack.Decoder(kind) for task, kind in PARAMETERS.items()
        }
        self.items: dict[Task, msgspec.msgpack.Decoder[Any]] = {
            task: msgspec.msgpack.Decoder(kind) for task, kind in ITEMS.items()
        }


class ItemAnswerer:
    """Answers the items of one call, with one coroutine per item.

    `QueryCall` uses the methods of this class to answer items without coroutines.
    """

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
        self.call = call
        model = entry.served_model
        self.algorithm = model.algorithms.get(call.task) or model.tokens[call.task]
        self.pipelines = entry.model_set.pipelines
        self._max_tokens = model.info.max_tokens
        self._core = core
        self._work = work
        self._decoder = decoders.items[call.task]
        self._received = received
        self._clock = clock
        self._tracing = tracing
        try:
            self.parameters = decoders.parameters[call.task].decode(call.parameters)
        except UNREADABLE as error:
            raise BadCall(f"invalid parameters for task `{call.task}`: {error}") from None

    async def answer(self, index: int, item: CallItem) -> Outcome:
        """Return the item's outcome.

        Every error becomes an outcome, but a cancellation is raised.
        """
        caller = self.begin(item)
        try:
            body, time_left = self.admit(index, item, caller)
            async with asyncio.timeout(time_left), self._memory_of(body, item, caller) as size:
                ask = AlgorithmContext(self.pipelines, caller, clock=self._clock)
                answer = await self.algorithm.run(body, self.parameters, ask)
                work = max(size, _encoding_work(answer))
                result = await run_token_work(work, encode_result, answer)
            return self.done(index, caller, answer, result)
        except asyncio.CancelledError:
            self.cancelled(index, caller)
            raise
        except TimeoutError:
            return self.failed(index, caller, self.too_late("the item's deadline has passed"))
        except Exception as error:  # noqa: BLE001 - a failing item must not affect other items
            return self.failed(index, caller, error)

    @contextlib.asynccontextmanager
    async def _memory_of(self, body: Any, item: CallItem, caller: RowCaller) -> AsyncIterator[int]:
        """Hold the memory of a large item in the `with` block; wait for room until the deadline.

        Yields the reserved bytes; 0 for a small item.
        """
        size = item_bytes(
            self.call.task,
            body,
            self.parameters,
            length=len(item.body),
            max_tokens=self._max_tokens,
        )
        if not size:
            yield 0
            return
        memory = self._core.memory
        check_fits(memory, size)
        await memory.hold(item.scope, size, caller.deadline)
        try:
            yield size
        finally:
            memory.release(item.scope, size)

    def begin(self, item: CallItem) -> RowCaller:
        """Begin an item, and return the `RowCaller` that identifies the item in calls for rows.

        Then end the item with exactly one call of `done`, `failed` or `cancelled`.
        """
        return RowCaller(
            scope=item.scope,
            deadline=self._received + item.remaining,
            span=self._start_span(item) if self._tracing.records else NO_SPAN,
            lane=self.call.lane,
            truncate=self.call.truncate,
            hosted=self._work.hosted,
        )

    def admit(self, index: int, item: CallItem, caller: RowCaller) -> tuple[Any, float]:
        """Reserve the item's work, and decode the item.

        Return the decoded body, and the seconds until the deadline.

        Raises:
            BackendError: the item would be late, or its body is invalid.
        """
        remaining = caller.deadline - self._clock()
        caller.reservation = self._work.reservation(index, item, time_left=remaining)
        # `not >` instead of `<=`, so that NaN counts as late.
        if not remaining > 0:
            raise self.too_late("the item's deadline passed before it began")
        try:
            return self._decoder.decode(item.body), min(remaining, LONGEST)
        except UNREADABLE as error:
            raise ItemRefused("bad_item", f"the item is not valid for its task: {error}") from None

    def too_late(self, detail: str) -> DeadlineExceeded:
        """Return the error of an item whose deadline has passed."""
        return DeadlineExceeded(detail, retry_after=self._work.backlog())

    def done(self, index: int, caller: RowCaller, answer: Any, result: bytes) -> Outcome:
        """End an item with its answer; `result` is the encoded answer."""
        if caller.revision is not None:
            caller.label = first_label(answer)
        outcome = Done(
            index=index,
            result=result,
            rows=caller.rows,
            tokens=caller.tokens,
            known=caller.cached,
            known_tokens=max(0, caller.input_tokens - caller.tokens),
            truncated_from=caller.truncated_from,
            arm=self._revision(caller) if caller.revision is not None else "",
            shadow=caller.shadow,
            is_partial=caller.is_partial,
        )
        self._end(index, caller, "done")
        return outcome

    def failed(self, index: int, caller: RowCaller, error: Exception) -> Outcome:
        """End an item with an error; log the error if it is not a `BackendError`."""
        error = reported(error, model=self.call.model)
        if isinstance(error, DeadlineExceeded) and error.retry_after is None:
            error = self.too_late(str(error))
        self._end(index, caller, _kind(error), error)
        return _failed(index, error, self._revision(caller))

    def cancelled(self, index: int, caller: RowCaller) -> None:
        """End an item whose caller has left."""
        self._end(index, caller, "cancelled")

    def _end(
        self, index: int, caller: RowCaller, kind: _Kind, error: BackendError | None = None
    ) -> None:
        """Count an item that has ended, end its span, and learn from its work."""
        if caller.span is not NO_SPAN:
            failure = None if error is None else error.code
            caller.span.end("client_gone" if kind == "cancelled" else failure)
        self._core.count_item(self.call, kind)
        if caller.revision is not None and self._revision(caller):
            self._core.revision_counts.count(
                caller.revision, kind, self._clock() - self._received, caller.label
            )
        is_late = kind == "expired"
        if kind == "cancelled":
            # A caller gives up at its own deadline, which may be slightly before the deadline here.
            is_late = caller.deadline - self._clock() < _LATE_CANCELLATION
        self._work.end(
            index,
            brought=caller.work,
            is_done=kind == "done",
            late_rows=caller.rows + caller.wasted if is_late else None,
        )

    def _revision(self, caller: RowCaller) -> str:
        """Return the revision that answers.

        Return "" if the model itself has neither a traffic split nor a shadow revision, even if a
        model below it has one.
        """
        if caller.revision is None or caller.revision[0] != self.call.model:
            return ""
        return caller.revision[1]

    def _start_span(self, item: CallItem) -> Span:
        carrier = {"traceparent": item.traceparent, "tracestate": item.tracestate}
        return self._tracing.call(carrier, {"http.request.method": "POST", "url.path": CALL_PATH})


def _encoding_work(answer: Any) -> int:
    """Return the work to encode an answer's arrays, in tokens."""
    if not isinstance(answer, dict):
        return 0
    sizes = [value.size for value in answer.values() if isinstance(value, np.ndarray)]
    return sum(sizes) // _VALUES_PER_TOKEN


def _kind(error: BackendError) -> _Kind:
    """Return the outcome label of a failed item."""
    if error.status == ItemRefused.status:
        return "refused"
    return "expired" if error.code == DeadlineExceeded.code else "failed"


def _failed(index: int, error: BackendError, revision: str) -> Failed:
    return Failed(
        index=index,
        status=error.status,
        code=error.code,
        detail=str(error),
        retryable=error.retryable,
        retry_after=error.retry_after,
        arm=revision,
    )
