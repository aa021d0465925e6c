"""Runs asyncio on a clock that jumps to the next timer, so that a day passes in minutes."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from typing_extensions import override

_T = TypeVar("_T")


class TimedSelector(selectors.DefaultSelector):
    """A selector that counts the seconds that pass while a `VirtualTimeLoop` waits."""

    now = 0.0


class _JumpingSelector(TimedSelector):
    """Returns immediately, and advances the clock by the time that a real selector would wait."""

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits and no timer is set: nothing would ever happen")
        self.now += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is its selector's.

    By default, the clock jumps to the next timer, and there are no sockets and threads.
    """

    def __init__(self, selector: TimedSelector | None = None) -> None:
        self._timed = selector or _JumpingSelector()
        super().__init__(self._timed)

    @override
    def time(self) -> float:
        return self._timed.now


def run_virtual(steps: Coroutine[Any, Any, _T]) -> _T:
    """Run `steps` to its end on an event loop of virtual time, which begins at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(steps)
