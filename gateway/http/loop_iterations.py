"""Measures event-loop iterations while requests arrive, and refuses requests under overload.

A request starts the measurement. The first iteration that is short and has few requests ends it.
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
"""Seconds of an iteration. A shorter iteration with few requests ends the measurement."""


class LoopIterations:
    """Measures the iterations of the event loop that it belongs to.

    `most` is the longest iteration in seconds that an overload may cause, however much time callers
    allow. With 0, nothing is measured.
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
        """Count a request before any work for it; return whether to ask `refuses`.

        Do not call this for a request that costs no more than its refusal.
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
        """Return why the last counted request is refused, or `None` if it is admitted.

        The request may take `allowed` seconds.
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
        """End an iteration. Work that is ready now belongs to the next iteration."""
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
