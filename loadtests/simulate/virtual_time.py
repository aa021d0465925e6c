"""Runs asyncio on a clock that jumps to the next timer, so that a day passes in minutes."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from typing_extensions import override

_T = TypeVar("_T")


class _JumpingSelector(selectors.SelectSelector):
    """Returns immediately, and advances the clock by the time that a real selector would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits and no timer is set: nothing would ever happen")
        self.now += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop without sockets and threads. Its clock jumps to the next timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    @override
    def time(self) -> float:
        return self._jumping.now


def run_virtual(steps: Coroutine[Any, Any, _T]) -> _T:
    """Run `steps` to its end on an event loop of virtual time, which begins at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(steps)
