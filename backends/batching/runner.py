"""Runs batches through an executor, and isolates the row that makes a batch fail."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from sluicegate.backends.batching.meter import Meter
from sluicegate.backends.batching.queue import RowQueue
from sluicegate.backends.batching.row import Outcome, Row
from sluicegate.backends.errors import (
    BackendError,
    DeadlineExceeded,
    ExecutorDied,
    ModelFailed,
    OutOfMemory,
    Overloaded,
    UpstreamFailed,
    UpstreamUnavailable,
)
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.executors.padded_batch import PaddedBatch, pad
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import Tracing
from sluicegate.backends.types import Encoding, FloatArray, JoinedWidth, OutputKind

# This many consecutive batches must have run alone before a batch runs on all cores.
_ALONE_BEFORE_WIDE = 3


class ParallelismChoice:
    """Chooses whether a batch runs on all cores or on one core.

    A batch that runs alone is faster on all cores. Under load, throughput is higher if each batch
    runs on one core.
    """

    def __init__(self, *, narrow: CostModel, wide: CostModel | None, always: bool = False) -> None:
        self._narrow = narrow
        self._wide = wide
        self._always = always
        self._alone = 0

    def choose(self, *, alone: bool, lengths: Sequence[int]) -> bool:
        """Return whether to run a batch on all cores; `alone` means that no other batch runs."""
        if self._wide is None:
            return False
        if self._always:
            return True
        self._alone = self._alone + 1 if alone else 0
        if self._alone <= _ALONE_BEFORE_WIDE:
            return False
        rows, longest, tokens = len(lengths), max(lengths), sum(lengths)
        wide = self._wide.seconds(rows=rows, longest=longest, tokens=tokens)
        return wide < self._narrow.seconds(rows=rows, longest=longest, tokens=tokens)


class BatchRunner:
    """Runs the batches of one batcher; all its worker threads may call `run` concurrently."""

    def __init__(
        self,
        *,
        settings: BackendSettings,
        executor: ModelExecutor,
        queue: RowQueue,
        meter: Meter,
        clock: Callable[[], float],
        tracing: Tracing,
        backlog: Callable[[], float],
    ) -> None:
        self._executor = executor
        self._queue = queue
        self._meter = meter
        self._clock = clock
        self._tracing = tracing
        self._backlog = backlog
        self._width = ParallelismChoice(
            narrow=executor.cost, wide=executor.wide_cost, always=settings.wide == "always"
        )
        # The last row that succeeded. Running it again distinguishes a broken executor from rows
        # that cannot be computed.
        self._proven: Row | None = None

    def free(self) -> None:
        """Let go of the executor. No batch may run any more."""
        del self._executor

    def expire(self, rows: list[Row]) -> list[Outcome]:
        """Return `DeadlineExceeded` for rows that cannot run in time."""
        if not rows:
            return []
        late = DeadlineExceeded(
            "the item's deadline passed before it could run", retry_after=self._backlog()
        )
        return [(row, late) for row in rows]

    def run(self, rows: list[Row], *, alone: bool) -> list[Outcome]:
        """Run rows in one batch. Halve a failing batch until the failing row is alone.

        `alone` means that no other batch runs or waits, so that the batch may use all cores.
        """
        if not rows:
            return []
        wide = self._width.choose(alone=alone, lengths=[row.length for row in rows])
        try:
            return self._run(rows, wide=wide)
        except (UpstreamUnavailable, Overloaded) as error:
            # No row is to blame, and a smaller batch would fail, too. Drop partial results, because
            # a failover sends all rows of an item again.
            self._meter.count_failed(len(rows))
            return [(row, error) for row in rows]

    def _run(self, rows: list[Row], *, wide: bool = False) -> list[Outcome]:
        try:
            values = self._run_rows(rows, wide=wide)
        except ModelFailed as error:
            if len(rows) == 1:
                self._blame(rows[0])
                return [(rows[0], error)]
            if isinstance(error, OutOfMemory):
                self._queue.limit_tokens(len(rows) * max(row.length for row in rows) // 2)
            return self._run_halves(rows)
        outcomes = list(zip(rows, values, strict=True))
        self._proven = next((r for r, v in outcomes if not isinstance(v, BackendError)), None)
        return outcomes

    def _run_halves(self, rows: list[Row]) -> list[Outcome]:
        half = len(rows) // 2
        outcomes: list[Outcome] = []
        for part in (rows[:half], rows[half:]):
            # The failed run took time, so some rows may have expired.
            runnable, dropped = self._queue.partition_runnable(part)
            outcomes += self.expire(dropped) + (self._run(runnable) if runnable else [])
        return outcomes

    def _blame(self, row: Row) -> None:
        """Check whether the row or the executor is to blame for a failure.

        To find out, run the proven row: a row that succeeded in an earlier batch.

        Raises:
            UpstreamUnavailable: the proven row also failed, and another server runs the graph.
            ExecutorDied: the proven row also failed, and this process runs the graph.
        """
        self._meter.count_failed(1)
        if self._proven is None or self._proven is row:
            return
        try:
            self._compute([self._proven])
        except UpstreamFailed as error:
            # The other server may recover while this process runs.
            raise UpstreamUnavailable(f"{error}, also for a row that succeeded before") from error
        except ModelFailed as error:
            raise ExecutorDied("the executor fails on a row that succeeded before") from error

    def _run_rows(
        self, rows: list[Row], *, wide: bool = False
    ) -> list["FloatArray | BackendError"]:
        lengths = [row.length for row in rows]
        padded = len(rows) * max(lengths)
        size = {"rows": len(rows), "tokens": sum(lengths), "padded_tokens": padded}
        span = self._tracing.batch([row.span for row in rows], size)
        run = span.child("model run", {"provider": self._executor.provider})
        deadlines = [row.deadline for row in rows]
        started = self._clock()
        try:
            output = self._compute(rows, wide=wide, time_left=max(deadlines) - started)
        except BackendError as error:
            run.end(error.code)
            span.end(error.code)
            raise
        took = self._clock() - started
        run.end()
        span.end()
        self._meter.count(
            lengths,
            took=took,
            late=sum([deadline <= started for deadline in deadlines]),
            waited=max(0.0, started - min([row.submitted for row in rows])),
        )
        return split_output(output, lengths, rows[0].kind, self._executor.joined)

    def _compute(
        self, rows: list[Row], *, wide: bool = False, time_left: float = math.inf
    ) -> FloatArray:
        try:
            batch = pad_encodings([row.encoding for row in rows], rows[0].kind)
            if wide:
                output = self._executor.run_wide(batch)
            else:
                output = self._executor.run_within(time_left, batch)
        except MemoryError as error:
            raise OutOfMemory("the machine is out of memory for this batch") from error
        check_shape(output, batch, self._executor)
        return output


def pad_encodings(encodings: Sequence[Encoding], kind: OutputKind) -> PaddedBatch:
    """Pad encodings to one batch."""
    batch = pad([encoding.ids for encoding in encodings], kind)
    for place, encoding in enumerate(encodings):
        if encoding.type_ids is not None:
            batch.type_ids[place, : len(encoding.ids)] = encoding.type_ids
        if encoding.attended:
            batch.mask[place, encoding.attended :] = 0
    return batch


def check_shape(output: FloatArray, batch: PaddedBatch, executor: ModelExecutor) -> None:
    """Check that an output has a value for each row of its batch.

    Raises:
        ModelFailed: the output has another shape. Its values may belong to other rows.
    """
    rows, length = batch.ids.shape
    expected = {
        OutputKind.POOLED: (rows, executor.dimensions),
        OutputKind.TOKENS: (rows, length, executor.dimensions),
        OutputKind.JOINED: (rows, executor.joined.of(length)),
    }[batch.output]
    if output.shape != expected:
        raise ModelFailed(f"the model's output has the shape {output.shape} instead of {expected}")


def split_output(
    output: FloatArray, lengths: list[int], kind: OutputKind, joined: JoinedWidth
) -> list["FloatArray | BackendError"]:
    """Copy a batch's output into read-only rows; a row with NaN or infinity becomes an error."""
    finite = np.isfinite(output).all()
    values: list[FloatArray | BackendError] = []
    for place, length in enumerate(lengths):
        value = joined.real(output[place], kind, length)
        if not finite and not np.isfinite(value).all():
            values.append(ModelFailed("the model's output for this row has NaN or infinity"))
            continue
        value = value.copy()
        value.flags.writeable = False
        values.append(value)
    return values
