"""Runs the threads of simulated processes one at a time, in the order of virtual time.

A thread is a greenlet, a `Strand`. It runs until it waits. The scheduler then takes the next event
from one queue, so that a run depends on nothing but its seed.
"""

import heapq
import itertools
import random
import sys
import threading
from asyncio.events import AbstractEventLoop, _set_running_loop
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from greenlet import getcurrent, greenlet

from testing.simulation.trace import Trace

if TYPE_CHECKING:
    from testing.simulation.machines import Process

_STEP: Final = (1e-6, 20e-6)
"""Seconds that an iteration of an event loop takes, at least and at most."""
MOST_STEPS_PER_SECOND: Final = 3_000_000
"""Steps within a second of virtual time that show that nothing goes on any more."""
_CHECKED: Final = 1000


class Deadlock(Exception):
    """Nothing can happen any more: every thread waits for another."""


class LiveLock(Exception):
    """Millions of steps pass while the clock hardly advances."""


class OutOfTime(Exception):
    """The run has not ended in its virtual time."""


class Event:
    """A call at a virtual time. `cancel` makes the scheduler skip it."""

    __slots__ = ("call", "label")

    def __init__(self, label: str, call: Callable[[], object]) -> None:
        self.label = label
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Forget the call."""
        self.call = None


class Strand(greenlet):  # type: ignore[misc]
    """A thread of a simulated process."""

    def __init__(self, process: "Process", name: str, run: Callable[[], object]) -> None:
        super().__init__(lambda _: run())
        self.process = process
        self.label = f"{process.label} {name}"
        self.ident = 0
        self.turn = 0
        """How often it began to wait. A wake-up for an earlier turn is stale."""
        self.is_waiting = False
        self.loop: AbstractEventLoop | None = None
        """The event loop that runs in the thread."""
        self.hooks: tuple[Any, Any] = (None, None)
        self.run_at_end: list[Callable[[], object]] = []


class _Here(threading.local):
    """What runs at this moment. There is one scheduler at a time in a program.

    Other threads of the operating system, such as one that an earlier test has left, take no part.
    """

    scheduler: "Scheduler | None" = None
    strand: "Strand | None" = None


here: Final = _Here()
"""The running scheduler and its running thread. Both are `None` outside a simulation."""


class Scheduler:
    """Has the queue of events. All times are seconds of virtual time since the start."""

    def __init__(self, seed: int, trace: Trace) -> None:
        self.now = 0.0
        self.random = random.Random(f"order {seed}")
        self.trace = trace
        self.switches = 0.02
        """How likely another thread runs when a thread takes a lock."""
        self.steps = 0
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = itertools.count()
        self._hub = getcurrent()
        self._until = 0.0
        self._last: Strand | None = None
        self._steps_since = (0.0, 0)

    def at(self, time: float, label: str, call: Callable[[], object]) -> Event:
        """Call `call` at `time`, in the order of the calls to `at` if times are equal."""
        event = Event(label, call)
        heapq.heappush(self._events, (max(time, self.now), next(self._numbers), event))
        return event

    def new_number(self) -> int:
        """Return a number that no thread and no event has."""
        return next(self._numbers)

    def run(self, *, until: float, is_over: Callable[[], bool]) -> None:
        """Run events until `is_over`.

        Raises:
            Deadlock, LiveLock, OutOfTime: see there.
        """
        self._hub = getcurrent()
        self._until = until
        here.scheduler = self
        try:
            while not is_over():
                if not self._events:
                    raise Deadlock(f"nothing can happen after {self.now:.6f} s")
                time, _, event = heapq.heappop(self._events)
                if event.call is None:
                    continue
                if time > until:
                    raise OutOfTime(f"the run has not ended after {until:g} s")
                self.now = time
                self._count()
                self.trace.step(time, event.label)
                event.call()
        finally:
            here.scheduler = None
            _set_running_loop(None)
            sys.set_asyncgen_hooks(None, None)

    def start(self, strand: Strand) -> None:
        """Begin to run a thread soon."""
        strand.parent = self._hub
        strand.is_waiting = True
        self.wake(strand)

    def wait(self, until: float | None = None) -> bool:
        """Suspend the running thread until `wake`, or until a time; return whether it was woken."""
        strand = here.strand
        if strand is None:
            raise RuntimeError("only a thread of a simulated process can wait")
        if until is not None and self._is_next(until):
            self.now = max(until, self.now)
            self.steps += 1
            self.trace.step(self.now, strand.label)
            return False
        strand.turn += 1
        strand.is_waiting = True
        timer = None
        if until is not None:
            turn = strand.turn
            timer = self.at(until, strand.label, lambda: self._resume(strand, turn, woken=False))
        strand.hooks = sys.get_asyncgen_hooks()
        woken = bool(self._hub.switch())
        if timer is not None:
            timer.cancel()
        return woken

    def _is_next(self, until: float) -> bool:
        """Return whether nothing happens before a time, so that no other thread need run.

        Sometimes it is false all the same, so that a live lock is noticed.
        """
        events = self._events
        while events and events[0][2].call is None:
            heapq.heappop(events)
        return (
            until <= self._until
            and bool(self.steps % _CHECKED)
            and (not events or until < events[0][0])
        )

    def wake(self, strand: Strand) -> None:
        """Let a waiting thread go on soon. Another thread may run first."""
        if strand.is_waiting:
            strand.is_waiting = False
            turn, soon = strand.turn, self.now + self.random.uniform(*_STEP)
            self.at(soon, strand.label, lambda: self._resume(strand, turn, woken=True))

    def pause(self) -> None:
        """Let other threads run for as long as an iteration of an event loop takes."""
        self.wait(self.now + self.random.uniform(*_STEP))

    def has_loop(self, loop: AbstractEventLoop | None) -> None:
        """Say which event loop begins or ends to run in the running thread."""
        if here.strand is not None:
            here.strand.loop, self._last = loop, None

    def may_switch(self) -> None:
        """Let other threads run sometimes, as an operating system does at any time."""
        if self.random.random() < self.switches:
            self.pause()

    def leave(self) -> None:
        """End the running thread, which is dead."""
        self._hub.switch()

    def _resume(self, strand: Strand, turn: int, *, woken: bool) -> None:
        process = strand.process
        if strand.turn != turn or not process.is_alive or strand.dead:
            return
        if process.is_paused:
            process.deferred.append(lambda: self._resume(strand, turn, woken=woken))
            return
        strand.turn += 1
        strand.is_waiting = False
        if strand is not self._last:  # asyncio asks the kernel for the process at each call
            _set_running_loop(strand.loop)
            sys.set_asyncgen_hooks(*strand.hooks)
            self._last = strand
        here.strand = strand
        try:
            strand.switch(woken)
        finally:
            here.strand = None

    def _count(self) -> None:
        self.steps += 1
        since, steps = self._steps_since
        if self.now - since >= 1.0:
            self._steps_since = (self.now, self.steps)
        elif self.steps - steps > MOST_STEPS_PER_SECOND:
            raise LiveLock(f"{self.steps - steps} steps in the second after {since:.6f} s")
