"""Runs rows in batches that depend only on the rows, so that a bulk job is reproducible.

A serving backend batches the rows that happen to wait, so results of two runs may differ in
rounding. But a resumed bulk job must give the same results as an uninterrupted job. So each part of
a bulk job (one output file) has its own batches. The rows of the part are divided into these
batches by length.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec
from typing_extensions import TypeVar, override

from sluicegate.backends.batching.batcher import Batcher
from sluicegate.backends.batching.coalescing import RowCache, RowCaller, RowCoalescer
from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.batching.runner import check_shape, pad_encodings, split_output
from sluicegate.backends.errors import BackendError, ModelFailed, OutOfMemory
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.tokenization.text_queue import TextQueue
from sluicegate.backends.types import Encoding, FloatArray, OutputKind

RowValue = FloatArray | BackendError
# After this many event-loop iterations without a new request for rows, all items are assumed to
# wait for rows or for the tokenizer.
_QUIET_ITERATIONS = 32
# On a processor, a batch itself costs as much as about this many tokens, so more padding costs more
# than another batch. This is no measured cost, because each run must make the same batches.
_CORES_PADDING = 32
_Answer = TypeVar("_Answer")


class PlannedBatches:
    """Runs rows of one executor in batches by length, in threads of `pool`. Safe in any thread."""

    def __init__(
        self, executor: ModelExecutor, limits: BatchLimits, pool: ThreadPoolExecutor
    ) -> None:
        self._executor = executor
        self._limits = limits
        self._most_padding = _CORES_PADDING if executor.shares_cores else math.inf
        self._pool = pool

    def run(self, encodings: Sequence[Encoding], kind: OutputKind) -> list[RowValue]:
        """Return the output or the error of each row. Equal rows are computed once.

        Raises:
            BackendError: the executor cannot run any row.
        """
        unique = list({each.key: each for each in encodings}.values())
        # Sort, because items may request rows in any order. Longest first, so that threads finish
        # at nearly the same time.
        unique.sort(key=_place, reverse=True)
        batches = divide(unique, self._limits, most_padding=self._most_padding)
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
        """Run a batch. Halve a failing batch until the failing row is alone."""
        try:
            padded = pad_encodings(batch, kind)
            output = self._executor.run(padded)
            check_shape(output, padded, self._executor)
        except (ModelFailed, MemoryError) as error:
            if len(batch) == 1:
                if isinstance(error, ModelFailed):
                    return [error]
                return [OutOfMemory("the machine is out of memory for this row")]
            half = len(batch) // 2
            return self._run(batch[:half], kind) + self._run(batch[half:], kind)
        return split_output(output, list(map(_length, batch)), kind, self._executor.joined)


def divide(
    encodings: Sequence[Encoding], limits: BatchLimits, *, most_padding: float = math.inf
) -> list[list[Encoding]]:
    """Divide rows, sorted from long to short; a batch has at most `most_padding` padding tokens."""
    batches: list[list[Encoding]] = []
    most = longest = padding = 0
    for encoding in encodings:
        length = _length(encoding)
        padding += longest - length
        if not batches or len(batches[-1]) >= most or padding > most_padding:
            batches.append([])
            longest, padding = length, 0
            most = max(1, min(limits.rows, limits.tokens // length))
        batches[-1].append(encoding)
    return batches


def _length(encoding: Encoding) -> int:
    return len(encoding.ids)


def _place(encoding: Encoding) -> tuple[int, bytes]:
    return len(encoding.ids), encoding.key


class _RowRequest(msgspec.Struct, frozen=True, eq=False):
    """Holds the rows for which an item waits."""

    batches: PlannedBatches
    kind: OutputKind
    encodings: Sequence[Encoding]
    answer: asyncio.Future[list[RowValue]]


class RowRounds:
    """Collects the rows that the items of one part of a bulk job need, and runs them together.

    Each joint run is a round. A round begins when every unfinished item waits for rows, however
    long that takes. The object belongs to one event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests: list[_RowRequest] = []
        self._reading = 0
        self._quiet = 0
        self._is_watching = False
        self._round: asyncio.Task[None] | None = None

    async def ask(
        self, batches: PlannedBatches, encodings: Sequence[Encoding], kind: OutputKind
    ) -> list[RowValue]:
        """Run rows together with rows of other items, and return the output or error of each row.

        The run begins when every unfinished item of the part waits for rows.
        """
        answer: asyncio.Future[list[RowValue]] = self._loop.create_future()
        self._requests.append(_RowRequest(batches, kind, encodings, answer))
        self._quiet = 0
        self._watch()
        return await answer

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Prevent a new joint run in the `with` block, while a thread tokenizes a text."""
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
            self._quiet = 0
            self._watch()

    def _watch(self) -> None:
        can_begin = self._requests and not self._reading and self._round is None
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
        requests, self._requests = self._requests, []
        groups: dict[tuple[PlannedBatches, OutputKind], list[_RowRequest]] = {}
        for request in requests:
            groups.setdefault((request.batches, request.kind), []).append(request)
        for (batches, kind), group in groups.items():
            await _answer(group, batches, kind)
        self._round = None
        self._watch()


async def _answer(group: Sequence[_RowRequest], batches: PlannedBatches, kind: OutputKind) -> None:
    encodings = [each for request in group for each in request.encodings]
    try:
        values = iter(await asyncio.to_thread(batches.run, encodings, kind))
    except Exception as error:  # noqa: BLE001 - otherwise, the items would wait forever
        for request in group:
            if not request.answer.done():
                request.answer.set_exception(error)
        return
    for request in group:
        own = [next(values) for _ in request.encodings]
        if not request.answer.done():
            request.answer.set_result(own)


ROUNDS: ContextVar[RowRounds] = ContextVar("ROUNDS")
"""The rounds of the part whose items run in this context."""


class PartTextQueue(TextQueue):
    """Tokenizes texts without a limit on their memory, because a whole part is in memory anyway."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        super().__init__(pool)
        self._threads = pool

    @override
    async def run(self, work: Callable[[], _Answer], *, characters: int) -> _Answer:
        with ROUNDS.get().reading():
            return await asyncio.wrap_future(self._threads.submit(work))


class PlannedRows(RowCoalescer):
    """Computes the outputs of rows with one encoder.

    `RowRounds` runs the rows of many items together. There is no queue, no row cache and no
    deadline.
    """

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
    """Update the row counts of `caller` for an item's rows, and return the rows' outputs.

    Raises:
        BackendError: a row has failed.
    """
    found = []
    for value in values:
        if isinstance(value, BackendError):
            raise value
        found.append(value)
    caller.rows += len(encodings)
    caller.tokens += sum([len(each.ids) for each in encodings])
    return found
