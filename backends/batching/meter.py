"""Counts the batches of a batcher and measures its speed."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from sluicegate.backends.batching.policy import Release
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.types import QueueStatistics
from sluicegate.wire.durations import SECONDS, DurationCounts

# The time constant of the rates of rows and tokens, in seconds in which a batch runs.
_MEMORY = 5.0
# The time constant of the pace, which changes quickly when other models use the device.
_PACE_MEMORY = 2.0
# The longest expected time between two steps of an item, in seconds.
_STEP = 0.02
# Bounds of the slowness, which is the measured time of batches divided by the predicted time.
_SLOWEST, _QUICKEST = 20.0, 0.05
# The minimum pace. It is low, because other models may use a slow device nearly all the time.
_LEAST_PACE = 0.002


class Meter:
    """Counts batches and measures the speed of the device while it is busy."""

    def __init__(self, *, worker_threads: int, cost: CostModel, clock: Callable[[], float]) -> None:
        self._worker_threads = worker_threads
        self._cost = cost
        self.clock = clock
        self._lock = threading.Lock()
        self.batches = self._rows = self._tokens = self._padded = self._failed = self._late = 0
        self._busy = self._work = self._wasted = 0.0
        self._waits, self._took_each = DurationCounts(SECONDS), DurationCounts(SECONDS)
        self._recent_rows = self._recent_tokens = self._recent_busy = 0.0
        self._releases: Counter[Release] = Counter()
        # The work of the running batches, and their number.
        self.running = 0.0
        self._runs = 0
        # While rows were waiting or expected: the work done, and the time passed.
        self._paced, self._pacing = 0.0, 0.0
        # The work done by the runs, and the time of the runs without the times between them.
        self._ran, self._running_time = 0.0, 0.0
        self._predicted = self._took = 0.0
        self._last_end: float | None = None
        self._has_waiting = False

    def count(
        self, lengths: Sequence[int], *, took: float, late: int = 0, waited: float = 0.0
    ) -> None:
        """Count a batch of rows of these lengths that ran for `took` seconds.

        `late` is the number of rows that began after their deadline. The oldest row waited for
        `waited` seconds.
        """
        rows, longest, tokens = len(lengths), max(lengths), sum(lengths)
        seconds = self._cost.seconds(rows=rows, longest=longest, tokens=tokens)
        with self._lock:
            self.batches += 1
            self._rows += rows
            self._tokens += tokens
            self._padded += rows * longest
            self._work += seconds - self._cost.base
            self._wasted += self._cost.padding(seconds, alone=sum(map(self._cost.alone, lengths)))
            self._late += late
            self._busy += took
            self._waits.add(waited)
            self._took_each.add(took)
            fade = max(0.0, 1.0 - took / (_MEMORY * self._worker_threads))
            self._recent_rows = self._recent_rows * fade + rows
            self._recent_tokens = self._recent_tokens * fade + tokens
            self._recent_busy = self._recent_busy * fade + took

    def begin(self, work: float, *, waiting_since: float) -> float:
        """Count `work` (predicted seconds) as running, and return the present time.

        `waiting_since` is the time since which the queue has not been empty.
        """
        now = self.clock()
        with self._lock:
            self.running += work
            self._runs += 1
            if self._last_end is not None and now > self._last_end + _STEP:
                # Rows that waited when the last batch was taken may have been withdrawn since, or
                # another thread has run them.
                has_waited = self._has_waiting and waiting_since <= self._last_end
                if not has_waited:
                    # The expected rows did not arrive, so the device was idle.
                    self._last_end = None
        return now

    def stop(self, work: float) -> None:
        """Remove work that succeeded or failed from the running work."""
        with self._lock:
            self.running = max(0.0, self.running - work)
            self._runs -= 1

    def end(
        self,
        *,
        release: Release,
        predicted: float,
        work: float,
        took: float,
        has_waiting: bool,
        has_reserved: bool,
    ) -> None:
        """Count the end of a batch.

        The pace is the work done per second. Usually, the time until this model's next batch does
        not count. That time counts if rows wait (`has_waiting`), because other models use the
        device meanwhile. It also counts if reserved rows are not queued yet (`has_reserved`),
        because an item is between two of its steps.
        """
        now = self.clock()
        with self._lock:
            self._releases[release] += 1
            self._predicted = 0.95 * self._predicted + predicted
            self._took = 0.95 * self._took + took
            fade = max(0.0, 1.0 - took / _PACE_MEMORY)
            self._ran = self._ran * fade + work * self._worker_threads
            self._running_time = self._running_time * fade + took
            if self._last_end is not None:
                self._pass(work, now - self._last_end)
            else:
                # No row waited before this batch. Count the batch all the same, so that a pace that
                # is too low can rise again: with such a pace, most rows are refused, and hardly any
                # row ever waits.
                self._pass(work * self._worker_threads, took)
            self._last_end = now if has_waiting or has_reserved else None
            self._has_waiting = has_waiting

    def _pass(self, work: float, passed: float) -> None:
        if passed > 0.0:
            fade = max(0.0, 1.0 - passed / _PACE_MEMORY)
            self._paced = self._paced * fade + work
            self._pacing = self._pacing * fade + passed

    def count_failed(self, rows: int) -> None:
        """Count rows that could not be computed."""
        with self._lock:
            self._failed += rows

    @property
    def slowness(self) -> float:
        """The ratio of measured to predicted time of batches."""
        if not self._predicted:
            return 1.0
        return min(_SLOWEST, max(_QUICKEST, self._took / self._predicted))

    @property
    def pace(self) -> float:
        """The work done per second, while other models also use the device."""
        if self._pacing > 0:
            return max(self._paced / self._pacing, _LEAST_PACE)
        return self._worker_threads / self.slowness

    @property
    def own_pace(self) -> float:
        """The work that would be done per second if no other model used the device."""
        if self._running_time > 0:
            return max(self._ran / self._running_time, _LEAST_PACE)
        return self._worker_threads / self.slowness

    def statistics(self) -> QueueStatistics:
        """Return the statistics of batches; fields about waiting and refused rows stay empty."""
        with self._lock:
            scale = self._worker_threads / self._recent_busy if self._recent_busy else 0.0
            return QueueStatistics(
                runs_in_flight=self._runs,
                batches=self.batches,
                rows=self._rows,
                tokens=self._tokens,
                padded_tokens=self._padded,
                work=self._work,
                wasted=self._wasted,
                failed_rows=self._failed,
                late_rows=self._late,
                busy=self._busy,
                rows_per_second=self._recent_rows * scale,
                tokens_per_second=self._recent_tokens * scale,
                durations={"queue": self._waits.seen(), "run": self._took_each.seen()},
                releases={reason.value: count for reason, count in self._releases.items()},
            )
