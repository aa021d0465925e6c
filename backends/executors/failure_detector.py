"""Detects failing executors by the outcomes of their runs, even if they report to be ready."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A run is suspect after this multiple of its predicted time, and these seconds at least.
_TIMES = 5.0
_LEAST = 1.0


class FailureDetector:
    """Watches the runs of an executor, from any number of threads.

    It is true (the executor is suspect) after a failed run, and while a run takes far too long,
    until another run succeeds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # When each run began, and how long none of its kind takes.
        self._running: dict[int, tuple[float, float]] = {}
        self._answered = clock()
        self._failed = False

    @contextmanager
    def run(self, expected: float) -> Iterator[None]:
        """Watch a run that should take `expected` seconds; one that raises has failed."""
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
        """The seconds to allow a short run that waits behind those in flight."""
        with self._lock:
            return max((max_wait for _, max_wait in self._running.values()), default=_LEAST)

    def __bool__(self) -> bool:
        """Whether the executor is suspected to have failed."""
        with self._lock:
            now = self._clock()
            return self._failed or any(
                now - max(started, self._answered) > max_wait
                for started, max_wait in self._running.values()
            )
