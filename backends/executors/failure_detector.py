"""Detects failing executors from their runs, even if an upstream server reports readiness."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A run takes too long if it exceeds both this multiple of its predicted time and this many seconds.
_TIMES = 5.0
_LEAST = 1.0


class FailureDetector:
    """Watches the runs of an executor; safe in any thread.

    The detector is truthy while the executor may have failed: its last run failed, or a run takes
    far too long. After a successful run, the detector is falsy again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # For each run, when it began and after how many seconds it is too long.
        self._running: dict[int, tuple[float, float]] = {}
        self._answered = clock()
        self._failed = False

    @contextmanager
    def run(self, expected: float) -> Iterator[None]:
        """Watch a run, which should take `expected` seconds, in a `with` block."""
        with self._lock:
            number = next(self._numbers)
            self._running[number] = (self._clock(), max(_LEAST, _TIMES * expected))
        answered = False
        try:
            yield
            answered = True
        finally:
            with self._lock:
                del self._running[number]
                self._failed = not answered
                if answered:
                    self._answered = self._clock()

    @property
    def max_wait(self) -> float:
        """The timeout for a short run that waits behind the runs in flight, in seconds."""
        with self._lock:
            return max((max_wait for _, max_wait in self._running.values()), default=_LEAST)

    def __bool__(self) -> bool:
        """Whether the executor may have failed."""
        with self._lock:
            now = self._clock()
            return self._failed or any(
                now - max(started, self._answered) > max_wait
                for started, max_wait in self._running.values()
            )
