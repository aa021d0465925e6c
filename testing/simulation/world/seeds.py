"""Runs the scenarios of seeds in forked processes, so that no run leaves anything for the next.

`install` must have been called before this module is imported.
"""

import gc
import os
import random
import select
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from testing.simulation.world.boots import Boot, run
from testing.simulation.world.faults import make_faults
from testing.simulation.world.operators import make_operations
from testing.simulation.world.run import Outcome, Prepared
from testing.simulation.world.scenario import LENGTH, Request, Scenario, Step, make_requests
from testing.simulation.world.world import prepare

SEEDS_OF_A_BOOT: Final = 200
"""So many seeds in a row begin with the same booted world."""
Timed = TypeVar("Timed", Request, Step)
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - each run has a new folder there


_SHORTER: Final = (8, 6, 6, 6, 4, 4, 4, 3, 2, 1)
"""How many times shorter than `LENGTH` a load is: one of these for each seed."""


def make_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed. Most are short, so that more seeds run in an hour."""
    times = random.Random(f"length {seed}").choice(_SHORTER)
    faults = tuple(
        msgspec.structs.replace(each, lasts=each.lasts / min(times, 2))
        for each in _sooner(make_faults(seed), times)
    )
    ends = [LENGTH / times, *(each.at + each.lasts for each in faults)]
    requests = make_requests(seed)[::times]
    return Scenario(
        seed=seed,
        requests=_sooner(requests, LENGTH / min(LENGTH, max(ends))),
        operations=_sooner(make_operations(seed), times),
        faults=faults,
    )


def _sooner(steps: Iterable[Timed], times: float) -> tuple[Timed, ...]:
    return tuple(msgspec.structs.replace(each, at=each.at / times) for each in steps)


class Runner:
    """Runs scenarios, `processes` at a time.

    `change` is called in a process before it boots, and `finish` in the process of each run.
    """

    def __init__(self, processes: int = 1) -> None:
        self._processes = processes
        self.change: Callable[[], None] = lambda: None
        self.finish: Callable[[], None] = lambda: None
        self._boots: list[Boot] = []
        """Those that run nothing."""
        self._count = 0

    def __enter__(self) -> Self:
        at = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        self._folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=at))
        ledger, models, secrets = prepare(self._folder)
        self._prepared = Prepared(ledger=ledger, models=models, secrets=secrets)
        self._warm_up()
        gc.collect()
        gc.freeze()
        return self

    def _warm_up(self) -> None:
        """Run a scenario in this process, so that the runs begin with warm caches."""
        folder = self._folder / "warm"
        folder.mkdir()
        here = Path.cwd()
        os.chdir(folder)
        scenario = Scenario(seed=0, requests=make_requests(0)[:20])
        run(0, lambda: scenario, self._prepared)
        os.chdir(here)

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        for boot in self._boots:
            boot.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, scenarios: Iterable[Scenario]) -> Iterator[Outcome]:
        """Yield the outcomes of scenarios, in the order in which they end."""
        waiting = list(scenarios)
        running: dict[int, Boot] = {}
        try:
            while True:
                while waiting and len(running) < self._processes:
                    scenario = self._take(waiting, running.values())
                    boot = self._boot_of(scenario)
                    running[boot.answers] = boot
                    boot.begin(scenario)
                if not running:
                    return
                for answers in select.select(running, [], [])[0]:
                    boot = running.pop(answers)
                    outcome = boot.outcome()
                    if boot.has_ended:
                        boot.close()
                    else:
                        self._boots.append(boot)
                    yield outcome
        finally:
            for boot in running.values():
                boot.close()

    def _take(self, waiting: list[Scenario], running: Iterable[Boot]) -> Scenario:
        """Remove a scenario that needs no boot, or one whose boot no other process has."""
        ready = {boot.seed for boot in self._boots if boot.change == self.change}
        taken = {boot.seed for boot in running}
        booted = (each for each in waiting if _boot_seed(each) in ready)
        others = (each for each in waiting if _boot_seed(each) not in taken)
        chosen = next(booted, None) or next(others, waiting[0])
        waiting.remove(chosen)
        return chosen

    def _boot_of(self, scenario: Scenario) -> Boot:
        """Return a booted world for a scenario, a new one if there is none."""
        seed = _boot_seed(scenario)
        for boot in self._boots:
            if (boot.seed, boot.change) == (seed, self.change):
                self._boots.remove(boot)
                return boot
        while len(self._boots) >= self._processes:
            self._boots.pop(0).close()
        self._count += 1
        folder = self._folder / f"boot-{self._count}"
        return Boot(folder, seed, self._prepared, change=self.change, finish=self.finish)


def _boot_seed(scenario: Scenario) -> int:
    return scenario.seed // SEEDS_OF_A_BOOT
