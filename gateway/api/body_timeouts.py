"""Ends the wait for bodies of inference requests that do not arrive in time.

One timer serves all requests: a timer for each would cost a tenth of a cache hit, whose body is
nearly always there already.
"""

import asyncio
from collections.abc import Coroutine
from math import inf
from typing import Any

from gateway.errors import RequestTimeout

_INTERVAL = 0.1


class BodyTimeouts:
    """The requests whose bodies are awaited. One per worker; belongs to its event loop."""

    def __init__(self) -> None:
        self._deadlines: dict[asyncio.Task[Any], float] = {}
        self._is_watching = False

    def __len__(self) -> int:
        return len(self._deadlines)

    async def read(self, body: Coroutine[Any, Any, bytes], *, deadline: float) -> bytes:
        """Return what `body` returns, unless that is later than `deadline` (loop time).

        Raises:
            RequestTimeout: the body was not there by the first check after it, within 0.1 s.
        """
        task = asyncio.current_task()
        if task is None:
            return await body
        self._deadlines[task] = deadline
        if not self._is_watching:
            self._watch()
        try:
            return await body
        except asyncio.CancelledError:
            if self._deadlines[task] != -inf or task.uncancel():
                raise  # it was the server
            raise RequestTimeout(
                "The body did not arrive in time; send it faster, or ask for more with"
                " `X-Request-Timeout`."
            ) from None
        finally:
            del self._deadlines[task]

    def _watch(self) -> None:
        self._is_watching = True
        asyncio.get_running_loop().call_later(_INTERVAL, self._end_late)

    def _end_late(self) -> None:
        now = asyncio.get_running_loop().time()
        for task, deadline in self._deadlines.items():
            if -inf < deadline <= now:
                self._deadlines[task] = -inf
                task.cancel()
        self._is_watching = False
        if self._deadlines:
            self._watch()
