"""Holds an item that an algorithm host runs, and answers the item's calls to models."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from sluicegate.backends.algorithms.base import Algorithm
from sluicegate.backends.algorithms.host_messages import ModelReply, ModelRequest
from sluicegate.backends.errors import BackendError, ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext, encode_result
from sluicegate.backends.types import Text
from sluicegate.wire.protocol import ITEMS, PARAMETERS, InferParameters, Task

_log = logging.getLogger(__name__)
# An item may make this many more calls to models than its row budget, because some calls are
# refused or need no rows.
_SPARE_CALLS = 256
ModelsBelow = Mapping[str, Mapping[Task, Algorithm]]


class HostedItem:
    """Holds one item of an algorithm host, its state in the host's queue, and its calls to models.

    If the host's process fails, a new process can run the item again.
    """

    def __init__(
        self,
        *,
        item: bytes,
        parameters: bytes,
        digest: bytes,
        below: ModelsBelow,
        ask: AlgorithmContext,
        rows: int,
    ) -> None:
        self.item, self.parameters, self.digest = item, parameters, digest
        self._below = below
        self._ask = ask
        self._rows = rows
        self._rows_left = ask.rows_left
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._call_count = 0
        self.errors: dict[str, BackendError] = {}
        """Errors of the models that this item called, by code."""
        self.outcome: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.is_waiting = True
        """The item is in the queue."""
        self.is_suspect = False
        """The item may have ended a process, so it runs alone."""
        self.runs = 0
        self.slot = 0
        self.number = 0
        self.started = 0.0
        self.busy_before = 0.0
        """Seconds that steps of other items had run when this item started."""
        self.delay_before = 0.0
        """Seconds that the host had waited for a processor core when this item started."""
        self._waiting_since = 0.0
        self._model_seconds = 0.0

    def begin(self) -> None:
        """Begin a run with the full row budget."""
        self.runs += 1
        self.is_waiting = False
        self._call_count, self._model_seconds = 0, 0.0
        self._ask.rows_left = min(self._rows_left, self._rows)

    def end(self) -> None:
        """Cancel the model calls and the timer of a run."""
        if self.timer is not None:
            self.timer.cancel()
        self._model_seconds = self.model_seconds
        for call in self._calls.values():
            call.cancel()
        self._calls.clear()

    def call_model(self, request: ModelRequest, send: Callable[[ModelReply], None]) -> None:
        """Start to answer a call to a model.

        If the item has made too many calls, its outcome becomes `ItemRefused`.
        """
        self._call_count += 1
        if self._call_count > self._rows + _SPARE_CALLS:
            detail = f"the algorithm calls models more than {self._rows + _SPARE_CALLS} times"
            self.outcome.set_exception(ItemRefused("too_many_rows", detail))
            return
        if not self._calls:
            self._waiting_since = asyncio.get_running_loop().time()
        task = asyncio.create_task(self._reply(request, send))
        self._calls[request.call] = task
        task.add_done_callback(lambda _: self._call_ended(request.call))

    @property
    def model_seconds(self) -> float:
        """Seconds that the item has waited for models."""
        if not self._calls:
            return self._model_seconds
        return self._model_seconds + asyncio.get_running_loop().time() - self._waiting_since

    def _call_ended(self, call: int) -> None:
        model_seconds = self.model_seconds
        if self._calls.pop(call, None) is not None and not self._calls:
            self._model_seconds = model_seconds

    def cancel_call(self, call: int) -> None:
        """Cancel a model call."""
        if (task := self._calls.get(call)) is not None:
            task.cancel()

    async def _reply(self, request: ModelRequest, send: Callable[[ModelReply], None]) -> None:
        try:
            reply = await self._answer(request)
        except ValueError as error:
            reply = _error_reply(request, error, code="")
        except BackendError as error:
            self.errors[error.code] = error
            reply = _error_reply(request, error, code=error.code)
        except Exception:  # noqa: BLE001 - without a reply, the host would wait forever
            _log.exception("a model call of an algorithm failed unexpectedly")
            failure = BackendError("the backend failed on this item")
            self.errors[failure.code] = failure
            reply = _error_reply(request, failure, code=failure.code)
        send(reply)

    async def _answer(self, request: ModelRequest) -> ModelReply:
        if request.model not in self._below:
            raise ValueError(f"`{request.model}` is not listed under `uses`")
        if request.texts is not None:
            return await self._answer_rows(request, request.texts)
        tasks = self._below[request.model]
        task = next(iter(tasks)) if request.task is None else Task(request.task)
        if (algorithm := tasks.get(task)) is None:
            raise ValueError(f"`{request.model}` has no task `{task}`")
        item = convert(request.item, ITEMS[task])
        parameters: Any = (
            InferParameters(parameters=request.parameters)
            if task is Task.INFER
            else convert(request.parameters, PARAMETERS[task], "bad_parameter")
        )
        answer = await algorithm.run(item, parameters, self._ask)
        return ModelReply(call=request.call, result=encode_result(answer))

    async def _answer_rows(self, request: ModelRequest, texts: list[Any]) -> ModelReply:
        if not self._ask.has_rows(request.model):
            raise ValueError(f"`{request.model}` has no graph of its own; use `ask.answer`")
        given = [convert(text, Text) for text in texts]
        if not given:
            return ModelReply(call=request.call, shape=(0, 0))
        rows = np.ascontiguousarray(await self._ask(request.model, given), dtype=np.float32)
        return ModelReply(call=request.call, shape=rows.shape, rows=rows.tobytes())


def convert(value: Any, kind: Any, code: str = "bad_item") -> Any:
    """Convert a value from an algorithm to the type that a model takes, or raise `ItemRefused`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ItemRefused(code, f"the model does not accept this value: {error}") from None


def _error_reply(request: ModelRequest, error: Exception, *, code: str) -> ModelReply:
    return ModelReply(
        call=request.call,
        error=type(error).__name__ if code else ValueError.__name__,
        code=code,
        detail=str(error),
        retry_after=getattr(error, "retry_after", None),
    )
