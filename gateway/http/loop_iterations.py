"""Measures event-loop iterations while requests arrive, and bounds what an overload admits.

Nothing is measured while nothing arrives. A request starts the measurement, which ends with the
first iteration that is short and has few requests.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gateway.http.overload import (
    CALM,
    FEWEST,
    Iteration,
    Overload,
    after_iteration,
    is_beyond,
    is_too_late,
)
from gateway.types import Criticality

WORKER_DELAY: Final = "worker_delay"
DEADLINE: Final = "deadline"
_SHORT: Final = 0.005
"""Seconds of an iteration that are no reason to go on measuring."""


class LoopIterations:
    """The iterations of a worker's event loop; belongs to it.

    `most` is the length in seconds that iterations are kept to under overload, where callers allow
    much time; 0: nothing is measured.
    """

    def __init__(self, *, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_measured = False
        self._started = 0.0
        self._requests = 0
        self._refused = 0
        self._overload: Overload = CALM
        self._is_overloaded = False

    def add_request(self) -> bool:
        """Count a request that was read and no work was done for; tell whether to ask `refuses`.

        Not to be called for what costs no more than its refusal.
        """
        self._requests += 1
        if not self._is_measured and self._most:
            self._is_measured = True
            self._started = self._clock()
            if self._loop is None:
                # Kept: to ask for it is a system call in Python 3.11.
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._end)
        return self._is_overloaded

    def refuses(self, criticality: Criticality, allowed: float) -> str | None:
        """Return why the request counted last is refused, `None` if it is admitted.

        It may take `allowed` seconds.
        """
        reason = None
        state, most = self._overload, self._most
        admitted = self._requests - self._refused - 1
        if is_too_late(state, allowed):
            reason = DEADLINE
        elif is_beyond(state, criticality, admitted=admitted, allowed=allowed, most=most):
            reason = WORKER_DELAY
        if reason is not None:
            self._refused += 1
        return reason

    def _end(self) -> None:
        """End an iteration; what is ready now, and whatever is read next, are of the following."""
        now, requests = self._clock(), self._requests
        latest = Iteration(
            length=now - self._started,
            requests=requests,
            admitted=requests - self._refused,
            ended=now,
        )
        self._overload = after_iteration(self._overload, latest)
        self._is_overloaded = now < self._overload.sheds_until
        self._requests = self._refused = 0
        self._started = now
        is_busy = requests >= FEWEST or latest.length > _SHORT
        if is_busy and self._loop is not None:
            # With this handle due the loop polls without waiting: the time is all work.
            self._loop.call_soon(self._end)
        else:
            self._is_measured = False
