"""Kills parts of a local system while a load runs, and notes when."""

from collections.abc import Callable, Sequence
from typing import Protocol

import click
import msgspec
from typing_extensions import override

from loadtests.scenarios.k6 import Watcher


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A role of which a process is killed, at a share of the load's duration."""

    role: str
    share: float
    region: str | None = None


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of a run that its report shows."""

    at: float
    what: str


class KillableSystem(Protocol):
    """A system whose processes can be killed, and are started again by their supervisor."""

    def kill(self, role: str, region: str | None) -> int:
        """Kill a process; return its id."""

    def is_back(self, role: str, region: str | None, victim: int) -> bool:
        """Tell whether another process has taken the place of one that was killed."""


FAULTS = (
    Fault(role="backend", region="eu", share=0.25),
    Fault(role="valkey-cache", share=0.5),
    Fault(role="valkey-state", share=0.75),
)


class FaultInjector(Watcher):
    """Kills each part when it is due, and marks when it is there again."""

    def __init__(
        self,
        local: KillableSystem,
        *,
        duration: float,
        faults: Sequence[Fault] = FAULTS,
        show: Callable[[str], None] = click.echo,
    ) -> None:
        self._local = local
        self._duration = duration
        self._due = sorted(faults, key=lambda fault: fault.share)
        self._show = show
        self._away: list[tuple[Fault, int]] = []
        self.marks: list[Mark] = []

    @override
    def advance(self, at: float, lines: Sequence[str], pid: int) -> None:
        while self._due and at >= self._due[0].share * self._duration:
            fault = self._due.pop(0)
            victim = self._local.kill(fault.role, fault.region)
            self._away.append((fault, victim))
            self._mark(at, f"{_name(fault)} killed")
        for fault, victim in list(self._away):
            if self._local.is_back(fault.role, fault.region, victim):
                self._away.remove((fault, victim))
                self._mark(at, f"{_name(fault)} is there again")

    def _mark(self, at: float, what: str) -> None:
        self.marks.append(Mark(at=round(at, 2), what=what))
        self._show(f"      {at:.1f} s: {what}")


def _name(fault: Fault) -> str:
    return f"{fault.role} {fault.region}" if fault.region else fault.role
