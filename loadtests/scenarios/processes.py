"""Samples the processor time and memory of the generator and of a local system's processes."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from typing_extensions import override

from loadtests.machine import busy_seconds
from loadtests.scenarios.k6 import Watcher

GENERATOR, OWN = "load generator", "this command"
_EVERY = 1.0


class UseSample(msgspec.Struct, frozen=True, kw_only=True):
    """What processes had used `at` seconds of the load, by role: seconds, and MiB at that time."""

    at: float
    processor: dict[str, float]
    memory: dict[str, float]


class UseSampler(Watcher):
    """Samples once a second. `processes` says which ids a role has now."""

    def __init__(self, processes: Callable[[], Mapping[str, Sequence[int]]]) -> None:
        self._processes = processes
        self._spent: dict[tuple[str, int], float] = {}
        self.samples: list[UseSample] = []

    @override
    def advance(self, at: float, lines: Sequence[str], pid: int) -> None:
        if self.samples and at - self.samples[-1].at < _EVERY:
            return
        memory: dict[str, float] = {}
        roles = {GENERATOR: [pid], OWN: [os.getpid()], **self._processes()}
        for role, pids in roles.items():
            for one in pids:
                # A process that has ended keeps what it had used.
                self._spent[role, one] = _seconds(one) or self._spent.get((role, one), 0.0)
            memory[role] = sum(map(_resident_mib, pids))
        processor: dict[str, float] = {}
        for (role, _), seconds in self._spent.items():
            processor[role] = processor.get(role, 0.0) + seconds
        self.samples.append(UseSample(at=at, processor=processor, memory=memory))


def cores_used(samples: Sequence[UseSample], begin: float, end: float) -> dict[str, float]:
    """Return the cores that each role kept busy between two times."""
    inside = [one for one in samples if begin <= one.at <= end]
    if len(inside) < 2:
        return {}
    first, last = inside[0], inside[-1]
    return {
        role: max(0.0, used - first.processor.get(role, 0.0)) / (last.at - first.at)
        for role, used in last.processor.items()
    }


def _seconds(pid: int) -> float:
    try:
        return busy_seconds(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def _resident_mib(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
