"""Holds an item that an algorithm host answers, and answers its questions to models."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from backends.algorithms.base import Algorithm
from backends.algorithms.host_messages import ModelReply, ModelRequest
from backends.errors import BackendError, ItemRefused
from backends.pipelines.ask import AlgorithmContext, encode_result
from backends.protocol import ITEMS, PARAMETERS, InferParameters, Task
from backends.types import Text

_log = logging.getLogger(__name__)
# Questions beside those for rows: that were refused, or cost none.
_SPARE_QUESTIONS = 256
ModelsBelow = Mapping[str, Mapping[Task, Algorithm]]


class HostedItem:
    """Owns the questions of one item, and its state in the queue of a host.

    It may be run more than once: in a new process, when that of the host was lost.
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
        self._questions: dict[int, asyncio.Task[None]] = {}
        self._asked = 0
        self.errors: dict[str, BackendError] = {}
        """What models failed with, by code."""
        self.outcome: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.is_waiting = True
        """It is in the queue."""
        self.is_suspect = False
        """It runs alone: it may have been what ended a process."""
        self.runs = 0
        self.slot = 0
        self.number = 0
        self.started = 0.0
        self.busy_before = 0.0
        """What other items of the host had used when it was started."""
        self.delay_before = 0.0
        """Seconds that the host had waited for a core when the item began."""
        self._asks_since = 0.0
        self._asked_for = 0.0

    def begin(self) -> None:
        """Begin a run, with the whole budget of rows."""
        self.runs += 1
        self.is_waiting = False
        self._asked, self._asked_for = 0, 0.0
        self._ask.rows_left = min(self._rows_left, self._rows)

    def end(self) -> None:
        """Withdraw the questions of a run, and its timer."""
        if self.timer is not None:
            self.timer.cancel()
        self._asked_for = self.asked_for
        for question in self._questions.values():
            question.cancel()
        self._questions.clear()

    def ask(self, request: ModelRequest, send: Callable[[ModelReply], None]) -> None:
        """Answer a question of the host, beside; too many end the item."""
        self._asked += 1
        if self._asked > self._rows + _SPARE_QUESTIONS:
            detail = f"the algorithm asks more than {self._rows + _SPARE_QUESTIONS} questions"
            self.outcome.set_exception(ItemRefused("too_many_rows", detail))
            return
        if not self._questions:
            self._asks_since = asyncio.get_running_loop().time()
        task = asyncio.create_task(self._reply(request, send))
        self._questions[request.question] = task
        task.add_done_callback(lambda _: self._answered(request.question))

    @property
    def asked_for(self) -> float:
        """Seconds in which the item waited for models that it asked."""
        if not self._questions:
            return self._asked_for
        return self._asked_for + asyncio.get_running_loop().time() - self._asks_since

    def _answered(self, question: int) -> None:
        asked_for = self.asked_for
        if self._questions.pop(question, None) is not None and not self._questions:
            self._asked_for = asked_for

    def withdraw(self, question: int) -> None:
        """Call a question off."""
        if (task := self._questions.get(question)) is not None:
            task.cancel()

    async def _reply(self, request: ModelRequest, send: Callable[[ModelReply], None]) -> None:
        try:
            reply = await self._answer(request)
        except ValueError as error:
            reply = _error_reply(request, error, code="")
        except BackendError as error:
            self.errors[error.code] = error
            reply = _error_reply(request, error, code=error.code)
        except Exception:  # noqa: BLE001 - whatever fails here must not leave the host waiting
            _log.exception("a question of an algorithm failed unexpectedly")
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
        return ModelReply(question=request.question, result=encode_result(answer))

    async def _answer_rows(self, request: ModelRequest, texts: list[Any]) -> ModelReply:
        if not self._ask.has_rows(request.model):
            raise ValueError(f"`{request.model}` has no rows of its own; use `ask.answer`")
        given = [convert(text, Text) for text in texts]
        if not given:
            return ModelReply(question=request.question, shape=(0, 0))
        rows = np.ascontiguousarray(await self._ask(request.model, given), dtype=np.float32)
        return ModelReply(question=request.question, shape=rows.shape, rows=rows.tobytes())


def convert(value: Any, kind: Any, code: str = "bad_item") -> Any:
    """Return what an algorithm gave as what a model takes, or raise `ItemRefused`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ItemRefused(code, f"it does not fit the algorithm: {error}") from None


def _error_reply(request: ModelRequest, error: Exception, *, code: str) -> ModelReply:
    return ModelReply(
        question=request.question,
        error=type(error).__name__ if code else ValueError.__name__,
        code=code,
        detail=str(error),
        retry_after=getattr(error, "retry_after", None),
    )
