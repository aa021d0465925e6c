"""Runs scenarios in forked processes, so that no run leaves anything for the next one.

`install` must have been called before this module is imported.
"""

import gc
import os
import posix
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from testing.simulation import Simulation
from testing.simulation.world.faults import make_faults
from testing.simulation.world.operators import make_operations
from testing.simulation.world.run import LONGEST, Outcome, Prepared, Run
from testing.simulation.world.scenario import Scenario, make_requests
from testing.simulation.world.world import prepare

_POLL: Final = 0.02
_MOST_SECONDS: Final = 600
"""Real seconds after which a run is given up."""
_LONGEST_STEP: Final = 5.0
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - each run has a new folder there
_HERE: Final = Path("/proc/self/cwd")
"""The folder of a run has the same path in every process: paths are parts of names."""


def make_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    return Scenario(
        seed=seed,
        requests=make_requests(seed),
        operations=make_operations(seed),
        faults=make_faults(seed),
    )


class Runner:
    """Runs scenarios, `processes` at a time. `change` is called in each process before the run."""

    def __init__(self, processes: int = 1) -> None:
        self._processes = processes
        self.change: Callable[[], None] = lambda: None
        self._running: dict[int, Scenario] = {}

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
        _run(Scenario(seed=0, requests=make_requests(0)[:20]), self._prepared)
        os.chdir(here)

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, scenarios: Iterable[Scenario]) -> Iterator[Outcome]:
        """Yield the outcomes of scenarios, in the order in which they end."""
        waiting, running = iter(scenarios), self._running
        while True:
            while len(running) < self._processes:
                scenario = next(waiting, None)
                if scenario is None:
                    break
                running[self._fork(scenario)] = scenario
            if not running:
                return
            pid, status = self._wait()
            yield self._outcome(running.pop(pid), status)

    def _wait(self) -> tuple[int, int]:
        """Wait for the end of one of this runner's processes; another runner may have others."""
        if len(self._running) == 1:
            return os.waitpid(next(iter(self._running)), 0)
        while True:
            for pid in self._running:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    return pid, 0
            time.sleep(_POLL)

    def _fork(self, scenario: Scenario) -> int:
        folder = self._place(scenario)
        folder.mkdir()
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.alarm(_MOST_SECONDS)
            os.chdir(folder)
            self.change()
            # Workers collect garbage at their start, which takes long in a process of this size.
            gc.collect = lambda *_: 0
            gc.freeze = lambda: None
            (folder / "outcome").write_bytes(msgspec.json.encode(_run(scenario, self._prepared)))
        except BaseException:  # noqa: BLE001 - the child must never go on as the parent
            (folder / "error").write_text(traceback.format_exc())
        finally:
            posix._exit(0)  # noqa: SLF001 - `os._exit` may be the one of simulated processes

    def _outcome(self, scenario: Scenario, status: int) -> Outcome:
        folder = self._place(scenario)
        try:
            return msgspec.json.decode((folder / "outcome").read_bytes(), type=Outcome)
        except FileNotFoundError:
            error = folder / "error"
            why = error.read_text() if error.exists() else f"the run ended with status {status}"
            return Outcome(seed=scenario.seed, findings=[why])
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _place(self, scenario: Scenario) -> Path:
        return self._folder / f"run-{scenario.seed}"


def _run(scenario: Scenario, prepared: Prepared) -> Outcome:
    simulation = Simulation(scenario.seed, _HERE)
    run = Run(simulation, scenario, prepared, _HERE)
    began = _processor_seconds()
    try:
        with watched(simulation):
            simulation.run(run.main, until=LONGEST)
    except BaseException as error:  # noqa: BLE001 - it is what was found
        run.findings.append(f"{type(error).__name__}: {error}")
        run.note("".join(traceback.format_exception(error)))
    run.tell_requests()
    return Outcome(
        seed=scenario.seed,
        findings=run.findings,
        story=run.story,
        digest=simulation.trace.digest(),
        statuses=Counter(str(attempt.status) for attempt in run.attempts),
        virtual_seconds=simulation.now,
        seconds=_processor_seconds() - began,
    )


class NeverWaits(KeyboardInterrupt):
    """A process runs on and on, and no other process can run."""


@contextmanager
def watched(simulation: Simulation, *, longest: float = _LONGEST_STEP) -> Iterator[None]:
    """Raise `NeverWaits` in a step that takes more than `longest` seconds of processor time."""
    steps = -1

    def look(*_: object) -> None:
        nonlocal steps
        if simulation.scheduler.steps == steps:
            raise NeverWaits(f"a step takes more than {longest:g} s of processor time")
        steps = simulation.scheduler.steps

    former = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, longest, longest)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, former)


def _processor_seconds() -> float:
    """Return the processor time of this process. `time.process_time` may be simulated."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
