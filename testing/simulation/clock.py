"""The clocks of a simulated machine, and what replaces the functions of `time`."""

import time
from collections.abc import Callable
from typing import Any, Final

from testing.simulation.scheduler import Scheduler, here

EPOCH: Final = 1_790_000_000.0
"""The Unix time at which every run starts."""
_real: Final = {name: getattr(time, name) for name in ("monotonic", "time", "sleep", "gmtime")}
_real_localtime: Final = time.localtime


class Clock:
    """Has the wall clock and the monotonic clock of a machine.

    The wall clock differs from true time by `offset` seconds. An oscillator that is wrong by
    `drift` seconds a second drives both clocks.
    """

    def __init__(self, scheduler: Scheduler, *, uptime: float) -> None:
        self._scheduler = scheduler
        self.offset = 0.0
        self._uptime = uptime
        self._drift = 0.0
        self._since = scheduler.now
        self._gained = 0.0

    @property
    def drift(self) -> float:
        """Seconds that the clocks gain in a second."""
        return self._drift

    @drift.setter
    def drift(self, value: float) -> None:
        self._gained, self._since = self._gain(), self._scheduler.now
        self._drift = value

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back by a negative number."""
        self.offset += seconds

    def time(self) -> float:
        """Return the Unix time in seconds that the machine believes."""
        return EPOCH + self._scheduler.now + self._gain() + self.offset

    def monotonic(self) -> float:
        """Return seconds since the machine was booted."""
        now = self._scheduler.now  # asyncio asks all the time: no further calls
        return self._uptime + now + self._gained + (now - self._since) * self._drift

    def after(self, seconds: float) -> float:
        """Return the virtual time at which the machine will have counted `seconds`."""
        return self._scheduler.now + max(0.0, seconds) / (1.0 + self._drift)

    def restart(self) -> None:
        """Count the monotonic clock from a new boot."""
        self._uptime = -(self._scheduler.now + self._gain())

    def _gain(self) -> float:
        return self._gained + (self._scheduler.now - self._since) * self._drift


def _wall() -> float:
    strand = here.strand
    return float(_real["time"]()) if strand is None else strand.process.machine.clock.time()


def _monotonic() -> float:
    strand = here.strand
    if strand is None:
        return float(_real["monotonic"]())
    return strand.process.machine.clock.monotonic()


def sleep(seconds: float) -> None:
    """Suspend the calling thread, in virtual time inside a simulation."""
    strand, scheduler = here.strand, here.scheduler
    if strand is None or scheduler is None:
        _real["sleep"](seconds)
    else:
        until = strand.process.machine.clock.after(max(seconds, 1e-6))
        while scheduler.now < until:  # others may wake the thread early
            scheduler.wait(until)


def _nanoseconds(read: Callable[[], float]) -> Callable[[], int]:
    return lambda: round(read() * 1e9)


def _at(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda seconds=None: real(_wall() if seconds is None else seconds)


REPLACEMENTS: Final[dict[str, Callable[..., Any]]] = {
    "time": _wall,
    "time_ns": _nanoseconds(_wall),
    "monotonic": _monotonic,
    "monotonic_ns": _nanoseconds(_monotonic),
    "perf_counter": _monotonic,
    "perf_counter_ns": _nanoseconds(_monotonic),
    "process_time": _monotonic,
    "process_time_ns": _nanoseconds(_monotonic),
    "thread_time": _monotonic,
    "thread_time_ns": _nanoseconds(_monotonic),
    "sleep": sleep,
    "gmtime": _at(_real["gmtime"]),
    "localtime": _at(_real_localtime),
}
"""The functions of the module `time` that a simulation replaces."""
