"""Runs rows in batches that their texts alone decide, so that equal work has equal answers.

A serving backend batches whatever waits at the moment. A bulk job that is resumed must answer as
one that was not interrupted: here the rows of one part of a job are divided by their lengths.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec
from typing_extensions import TypeVar, override

from backends.batching.batcher import Batcher
from backends.batching.policy import BatchLimits
from backends.batching.runner import pad_encodings, split_output
from backends.batching.shared import RowCache, RowCaller, SharedRows
from backends.errors import BackendError, ModelFailed, OutOfMemory
from backends.executors.base import ModelExecutor
from backends.tokenization.text_queue import TextQueue
from backends.types import Encoding, FloatArray, OutputKind

RowValue = FloatArray | BackendError
# Event-loop iterations without a new row after which no item of a part can ask for one more: each
# waits for the round, but those whose texts a thread reads, which are counted.
_QUIET_ITERATIONS = 32
_Answer = TypeVar("_Answer")


class PlannedBatches:
    """Runs rows of one executor by length, in threads of `pool`; any thread may call it."""

    def __init__(
        self, executor: ModelExecutor, limits: BatchLimits, pool: ThreadPoolExecutor
    ) -> None:
        self._executor = executor
        self._limits = limits
        self._pool = pool

    def run(self, encodings: Sequence[Encoding], kind: OutputKind) -> list[RowValue]:
        """Return the output of each row, or why it has none; equal rows are computed once.

        Raises:
            BackendError: no row can be run any more.
        """
        unique = list({each.key: each for each in encodings}.values())
        # The longest first: what is left at the end is short. Items may ask in any order.
        unique.sort(key=_place, reverse=True)
        batches = divide(unique, self._limits)
        running = [self._pool.submit(self._run, batch, kind) for batch in batches]
        try:
            values = {
                encoding.key: value
                for batch, future in zip(batches, running, strict=True)
                for encoding, value in zip(batch, future.result(), strict=True)
            }
        finally:
            for future in running:
                future.cancel()
        return [values[each.key] for each in encodings]

    def _run(self, batch: Sequence[Encoding], kind: OutputKind) -> list[RowValue]:
        """Run a batch; halve one that fails until the row to blame is alone."""
        try:
            output = self._executor.run(pad_encodings(batch, kind))
        except (ModelFailed, MemoryError) as error:
            if len(batch) == 1:
                if isinstance(error, ModelFailed):
                    return [error]
                return [OutOfMemory("there was no memory for the row")]
            half = len(batch) // 2
            return self._run(batch[:half], kind) + self._run(batch[half:], kind)
        return split_output(output, list(map(_length, batch)), kind)


def divide(encodings: Sequence[Encoding], limits: BatchLimits) -> list[list[Encoding]]:
    """Return the batches of rows that come longest first."""
    batches: list[list[Encoding]] = []
    most = 0
    for encoding in encodings:
        if not batches or len(batches[-1]) >= most:
            batches.append([])
            most = max(1, min(limits.rows, limits.tokens // _length(encoding)))
        batches[-1].append(encoding)
    return batches


def _length(encoding: Encoding) -> int:
    return len(encoding.ids)


def _place(encoding: Encoding) -> tuple[int, bytes]:
    return len(encoding.ids), encoding.key


class _Question(msgspec.Struct, frozen=True, eq=False):
    """Holds the rows that an item waits for."""

    batches: PlannedBatches
    kind: OutputKind
    encodings: Sequence[Encoding]
    answer: asyncio.Future[list[RowValue]]


class RowRounds:
    """Gathers the rows that the items of one part ask for, and runs them together.

    A round begins when every item waits, however long that takes. Belongs to an event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._questions: list[_Question] = []
        self._reading = 0
        self._quiet = 0
        self._is_watching = False
        self._round: asyncio.Task[None] | None = None

    async def ask(
        self, batches: PlannedBatches, encodings: Sequence[Encoding], kind: OutputKind
    ) -> list[RowValue]:
        """Return the output of each row, or why it has none, after the round that it is in."""
        answer: asyncio.Future[list[RowValue]] = self._loop.create_future()
        self._questions.append(_Question(batches, kind, encodings, answer))
        self._quiet = 0
        self._watch()
        return await answer

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Begin no round while a thread reads a text of an item."""
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
            self._quiet = 0
            self._watch()

    def _watch(self) -> None:
        can_begin = self._questions and not self._reading and self._round is None
        if can_begin and not self._is_watching:
            self._quiet = 0
            self._is_watching = True
            self._loop.call_soon(self._on_iteration)

    def _on_iteration(self) -> None:
        if self._reading:
            self._is_watching = False
            return
        self._quiet += 1
        if self._quiet <= _QUIET_ITERATIONS:
            self._loop.call_soon(self._on_iteration)
            return
        self._is_watching = False
        self._round = self._loop.create_task(self._run())

    async def _run(self) -> None:
        questions, self._questions = self._questions, []
        groups: dict[tuple[PlannedBatches, OutputKind], list[_Question]] = {}
        for question in questions:
            groups.setdefault((question.batches, question.kind), []).append(question)
        for (batches, kind), group in groups.items():
            await _answer(group, batches, kind)
        self._round = None
        self._watch()


async def _answer(group: Sequence[_Question], batches: PlannedBatches, kind: OutputKind) -> None:
    encodings = [each for question in group for each in question.encodings]
    try:
        values = iter(await asyncio.to_thread(batches.run, encodings, kind))
    except Exception as error:  # noqa: BLE001 - the items would wait for ever
        for question in group:
            if not question.answer.done():
                question.answer.set_exception(error)
        return
    for question in group:
        own = [next(values) for _ in question.encodings]
        if not question.answer.done():
            question.answer.set_result(own)


ROUNDS: ContextVar[RowRounds] = ContextVar("ROUNDS")
"""Of the part whose items are answered in this context."""


class PartTextQueue(TextQueue):
    """Reads the texts of parts, all of which are in memory anyway: none is refused."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        super().__init__(pool)
        self._threads = pool

    @override
    async def run(self, work: Callable[[], _Answer], *, characters: int) -> _Answer:
        with ROUNDS.get().reading():
            return await asyncio.wrap_future(self._threads.submit(work))


class PlannedRows(SharedRows):
    """Answers the rows of one encoder by rounds, without a queue, a row cache or a deadline."""

    def __init__(
        self, *, digest: str, cache: RowCache, batcher: Batcher, pool: ThreadPoolExecutor
    ) -> None:
        super().__init__(digest=digest, cache=cache, batcher=batcher)
        self.batches = PlannedBatches(batcher.executor, batcher.limits, pool)

    @override
    async def ask(
        self, encodings: Sequence[Encoding], *, kind: OutputKind, caller: RowCaller
    ) -> list[FloatArray]:
        caller.spend(len(encodings))
        if not encodings:
            return []
        values = await ROUNDS.get().ask(self.batches, encodings, kind)
        return count_rows(values, encodings, caller)


def count_rows(
    values: Sequence[RowValue], encodings: Sequence[Encoding], caller: RowCaller
) -> list[FloatArray]:
    """Return the values of an item's rows, which are counted to it.

    Raises:
        BackendError: one of them has none.
    """
    found = []
    for value in values:
        if isinstance(value, BackendError):
            raise value
        found.append(value)
    caller.rows += len(encodings)
    caller.tokens += sum([len(each.ids) for each in encodings])
    return found
