"""Marks in shared memory whose step an algorithm host runs, and how long those of each took.

The host writes, the backend reads, also when the host hangs or has died. A step is what a task
runs between two waits. All times are of the system's monotonic clock, in nanoseconds.
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
    """Holds the slot whose step runs now, when it began, and the seconds it has taken."""

    slot: int
    began: int
    elapsed: float


class StepMarks:
    """Maps the marks of one host."""

    def __init__(self, descriptor: int) -> None:
        self._words = memoryview(mmap.mmap(descriptor, _BYTES)).cast("Q")

    @classmethod
    def create(cls) -> tuple[Self, int]:
        """Return new marks and their descriptor, which the host is given."""
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
        """Mark that code runs which no mark follows: of a thread, or of an item that has ended."""
        self._words[_UNMARKED] = 1

    @property
    def are_exact(self) -> bool:
        """Whether all that runs is marked."""
        return not self._words[_UNMARKED]

    def step(self) -> Step | None:
        """Return the step that runs now, `None` between two."""
        began, current = self._words[_STARTED], self._words[_CURRENT]
        if not current:
            return None
        elapsed = (time.monotonic_ns() - began) / _SECOND
        return Step(slot=current - 1, began=began, elapsed=elapsed)

    def busy_of_others(self, slot: int) -> float:
        """Return the seconds so far in which steps of other slots ran, the present one included."""
        step = self.step()
        present = step.elapsed if step is not None and step.slot != slot else 0.0
        return (self._words[_BUSY] - self._words[_FIRST_SLOT + slot]) / _SECOND + present
