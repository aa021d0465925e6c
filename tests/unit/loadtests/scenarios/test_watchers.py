"""Tests what follows a run: progress, faults, processes."""

import os

from loadtests.scenarios.faults import FAULTS, Fault, FaultInjector
from loadtests.scenarios.plan import Phase, Plan
from loadtests.scenarios.processes import GENERATOR, OWN, UseSampler
from loadtests.scenarios.progress import Progress

PLAN = Plan(phases=(Phase(name="steady", rate=2.0, duration=20.0),))


class _System:
    """A system whose killed processes are there again when `is_ready` says so."""

    def __init__(self) -> None:
        self.killed: list[tuple[str, str | None]] = []
        self.is_ready = False

    def kill(self, role: str, region: str | None) -> int:
        self.killed.append((role, region))
        return len(self.killed)

    def is_back(self, role: str, region: str | None, victim: int) -> bool:
        return self.is_ready


def test_progress_counts_the_answers_since_its_last_line() -> None:
    shown: list[str] = []
    progress = Progress(PLAN, deadline=1.0, show=shown.append)
    lines = ["began,0", "100,20,200,0,0,h,0", "600,30,200,0,0,m,0", "700,2,503,0,0,m,1"]

    progress.advance(0.5, lines[:2], 1)
    progress.advance(2.0, lines[2:], 1)
    progress.advance(4.0, ["3000,0,0,0,0,,0"], 1)

    first, second = shown
    assert "2 of 20 s  steady" in first
    assert "in time 1, refused 0, other 0" in first
    assert "p50 30 ms" in first
    assert "hits 50%" in first
    assert "in time 0, refused 0, other 0" in second


def test_each_part_is_killed_when_it_is_due_and_marked_when_it_is_back() -> None:
    system = _System()
    faults = (Fault(role="backend", region="eu", share=0.5), Fault(role="valkey-cache", share=0.8))
    injector = FaultInjector(system, duration=20.0, faults=faults, show=lambda _: None)

    for at in (1.0, 9.9, 10.1):
        injector.advance(at, (), 1)
    system.is_ready = True
    for at in (11.0, 16.5):
        injector.advance(at, (), 1)

    assert system.killed == [("backend", "eu"), ("valkey-cache", None)]
    assert [(mark.at, mark.what) for mark in injector.marks] == [
        (10.1, "backend eu killed"),
        (11.0, "backend eu is there again"),
        (16.5, "valkey-cache killed"),
        (16.5, "valkey-cache is there again"),
    ]


def test_a_backend_and_both_redis_are_killed_one_after_another() -> None:
    assert [fault.role for fault in FAULTS] == ["backend", "valkey-cache", "valkey-state"]
    assert all(0 < fault.share < 1 for fault in FAULTS)


def test_processes_are_sampled_once_a_second_and_one_that_ends_keeps_what_it_used() -> None:
    running = {"gateway": [os.getpid()]}
    sampler = UseSampler(lambda: running)

    sampler.advance(0.0, (), os.getpid())
    sampler.advance(0.4, (), os.getpid())
    running["gateway"] = []
    sampler.advance(1.1, (), os.getpid())

    first, last = sampler.samples
    assert set(first.processor) == {GENERATOR, OWN, "gateway"}
    assert last.processor["gateway"] == first.processor["gateway"] > 0
    assert first.memory["gateway"] > 1
    assert last.memory["gateway"] == 0
