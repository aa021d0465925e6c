"""Runs a model owner's algorithm: typed, within a budget, isolated from other work."""

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import orjson
from typing_extensions import override

from backends.algorithms.authoring import Ask as UserAsk
from backends.algorithms.base import Algorithm
from backends.algorithms.event_loop_thread import EventLoopBlocked, EventLoopThread
from backends.algorithms.user_code import UserCode, error_location
from backends.errors import BackendError, ItemRefused
from backends.pipelines.ask import AlgorithmContext, encode_result
from backends.protocol import ITEMS, PARAMETERS, InferParameters, Task
from backends.types import FloatArray, Text

# How long a loop may be held after an item's time before what holds it is interrupted.
_TIMEOUT = 0.1


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds the seconds and the rows of all models that an algorithm may use for an item."""

    time: Annotated[float, msgspec.Meta(gt=0.0)] = 5.0
    rows: Annotated[int, msgspec.Meta(ge=1)] = 256


class Custom(Algorithm):
    """Answers with a model owner's `async def run(item, ask)`.

    It runs in a thread of its own: its errors, endless loops and blocking calls fail its own
    items and do not affect those of other models.
    """

    def __init__(
        self,
        *,
        name: str,
        code: UserCode,
        below: Mapping[str, Mapping[Task, Algorithm]],
        budget: Budget,
    ) -> None:
        self._code = code
        self._below = below
        self._budget = budget
        self._file = code.run.__code__.co_filename.rpartition("/")[2]
        self._side = EventLoopThread(f"algorithm {name}")
        # Models come and go while serving: the thread ends with the last reference to its model.
        weakref.finalize(self, self._side.close)
        self.version = 1 + sum(
            algorithm.version for tasks in below.values() for algorithm in tasks.values()
        )

    @override
    async def run(self, item: Any, parameters: InferParameters, ask: AlgorithmContext) -> Any:
        typed = _convert(item, self._code.item, "bad_item")
        chosen = _convert(parameters.parameters, self._code.parameters, "bad_parameter")
        ask.limit_rows(self._budget.rows)
        asking = _CrossLoopAsk(self._below, ask, asyncio.get_running_loop())
        work = self._side.start(self._answer(typed, asking, msgspec.structs.asdict(chosen)))
        try:
            async with asyncio.timeout(self._budget.time):
                outcome = await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            # The caller disconnected, or its deadline passed.
            self._side.free(_TIMEOUT)
            raise
        except (TimeoutError, EventLoopBlocked):
            self._side.free(_TIMEOUT)
            raise ItemRefused(
                "algorithm_too_slow",
                f"the algorithm took more than the {self._budget.time:g} s it has for an item",
            ) from None
        if isinstance(outcome, BackendError):
            raise outcome
        return outcome

    async def _answer(self, item: Any, ask: UserAsk, parameters: dict[str, Any]) -> Any:
        """Return the result, or the error to raise: nothing foreign may reach either loop."""
        try:
            result = await self._code.run(item, ask, **parameters)
            plain = msgspec.to_builtins(result, enc_hook=_plain)
        except BackendError as error:
            return error
        except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
            place = error_location(error, self._file)
            return ItemRefused("algorithm_failed", f"the algorithm failed with {place}")
        try:
            msgspec.convert(plain, self._code.result)
            return msgspec.Raw(encode_result(plain))
        except (msgspec.ValidationError, TypeError, RecursionError) as error:
            # Its message names types and fields, never values.
            return ItemRefused("algorithm_failed", f"the algorithm's result is none: {error}")


class _CrossLoopAsk(UserAsk):
    """Runs the algorithm's questions on the backend's event loop."""

    def __init__(
        self,
        below: Mapping[str, Mapping[Task, Algorithm]],
        ask: AlgorithmContext,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._below = below
        self._ask = ask
        self._loop = loop

    @override
    async def __call__(self, model: str, texts: Sequence[Text]) -> FloatArray:
        self._tasks(model)
        if not self._ask.has_rows(model):
            raise ValueError(f"`{model}` has no rows of its own; use `ask.answer`")
        given = [_convert(text, Text, "bad_item") for text in texts]
        return (
            await self._run_on_backend_loop(lambda: self._ask(model, given)) if given else _NO_ROWS
        )

    @override
    async def answer(
        self, model: str, item: Any, *, task: str | None = None, **parameters: Any
    ) -> Any:
        tasks = self._tasks(model)
        chosen = next(iter(tasks)) if task is None else Task(task)
        typed = _convert(item, ITEMS[chosen], "bad_item")
        if chosen is Task.INFER:
            given: Any = InferParameters(parameters=parameters)
        else:
            given = _convert(parameters, PARAMETERS[chosen], "bad_parameter")
        answer = await self._run_on_backend_loop(lambda: tasks[chosen].run(typed, given, self._ask))
        return orjson.loads(encode_result(answer))

    def _tasks(self, model: str) -> Mapping[Task, Algorithm]:
        if model not in self._below:
            raise ValueError(f"`{model}` is not listed under `uses`")
        return self._below[model]

    async def _run_on_backend_loop(self, question: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        future = asyncio.run_coroutine_threadsafe(question(), self._loop)
        return await asyncio.wrap_future(future)


_NO_ROWS = np.empty((0, 0), dtype=np.float32)


def _convert(value: Any, kind: Any, code: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ItemRefused(code, f"it does not fit the algorithm: {error}") from None


def _plain(value: Any) -> Any:
    """Return a numpy value as plain Python."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"a `{type(value).__name__}` is no JSON")
