"""Records in shared memory which item an algorithm host runs, and for how long.

A step is the code that a task runs between two awaits. The host marks the start and the end of each
step. The backend can read the marks even if the host hangs or has died. Times are nanoseconds of
the system's monotonic clock.
"""

import mmap
import os
import time
from typing import Self

import msgspec

SLOTS = 256
_CURRENT, _STARTED, _BUSY, _UNMARKED, _FIRST_SLOT = range(5)
_BYTES = 8 * (_FIRST_SLOT + SLOTS)
_SECOND = 1e9


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the running step.

    `slot` is the place of the item in the shared memory. `began` is the start of the step in
    nanoseconds, and `elapsed` is the number of seconds so far.
    """

    slot: int
    began: int
    elapsed: float


class StepMarks:
    """Reads and writes the step marks of one host, in memory that host and backend share."""

    def __init__(self, descriptor: int) -> None:
        self._words = memoryview(mmap.mmap(descriptor, _BYTES)).cast("Q")

    @classmethod
    def create(cls) -> tuple[Self, int]:
        """Return new marks, and the file descriptor that gives the host access to them."""
        descriptor = os.memfd_create("step marks", 0)
        os.ftruncate(descriptor, _BYTES)
        return cls(descriptor), descriptor

    def begin(self, slot: int) -> None:
        """Mark that a step of `slot` begins."""
        self._words[_STARTED] = time.monotonic_ns()
        self._words[_CURRENT] = slot + 1

    def end(self, slot: int) -> None:
        """Mark that the step has ended."""
        took = time.monotonic_ns() - self._words[_STARTED]
        self._words[_CURRENT] = 0
        self._words[_BUSY] += took
        self._words[_FIRST_SLOT + slot] += took

    def note_unmarked(self) -> None:
        """Record that the host runs code whose steps are not marked.

        This code is in a thread that the algorithm started, or in a task that did not end with its
        item.
        """
        self._words[_UNMARKED] = 1

    @property
    def are_exact(self) -> bool:
        """Whether all running code is marked."""
        return not self._words[_UNMARKED]

    def step(self) -> Step | None:
        """Return the running step, or `None`."""
        began, current = self._words[_STARTED], self._words[_CURRENT]
        if not current:
            return None
        elapsed = (time.monotonic_ns() - began) / _SECOND
        return Step(slot=current - 1, began=began, elapsed=elapsed)

    def busy_of_others(self, slot: int) -> float:
        """Return the seconds for which steps of other slots have run, including a running step."""
        step = self.step()
        present = step.elapsed if step is not None and step.slot != slot else 0.0
        return (self._words[_BUSY] - self._words[_FIRST_SLOT + slot]) / _SECOND + present
