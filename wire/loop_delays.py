"""Measures how late timers of an event loop are."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, thread_time
from typing import Final

INTERVAL: Final = 0.1
_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
_NANOSECOND: Final = 1e-9


@contextlib.contextmanager
def measured_loop(count: Callable[[float, float], None]) -> Iterator[None]:
    """Measure the delay of the running event loop ten times a second, in the `with` block.

    `count` gets two numbers for each timer: by how many seconds the timer was late, and a lower
    bound of the seconds for which code held the loop. Time in which the loop's thread waits for a
    processor core is part of the first number only.
    """
    loop = asyncio.get_running_loop()
    due = perf_counter() + INTERVAL
    waited, ran = waited_for_core(), thread_time()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer, due, waited, ran
        late, waits, runs = perf_counter() - due, waited_for_core() - waited, thread_time() - ran
        waited, ran = waited + waits, ran + runs
        # Some waits, and some of the processor time, were before the timer was due.
        held = max(late - waits, runs - INTERVAL)
        count(max(0.0, late), max(0.0, held))
        due = perf_counter() + INTERVAL
        timer = loop.call_later(INTERVAL, look)

    timer = loop.call_later(INTERVAL, look)
    try:
        yield
    finally:
        timer.cancel()


def waited_for_core() -> float:
    """Return for how many seconds this thread has waited for a processor core (proc(5))."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) * _NANOSECOND
    except (OSError, IndexError):  # this kernel has no schedstat
        return 0.0
