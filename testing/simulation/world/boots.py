"""Boots the world once for many scenarios: the booted process forks for each of them."""

import ctypes
import gc
import os
import posix
import resource
import shutil
import signal
import traceback
from asyncio.events import _set_running_loop
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from testing.simulation import Simulation
from testing.simulation.scheduler import here
from testing.simulation.snapshot import Snapshot, fork
from testing.simulation.world.run import LONGEST, Outcome, Prepared, Run
from testing.simulation.world.scenario import Scenario

_MOST_SECONDS: Final = 600
"""Real seconds after which a boot or a run is given up."""
_LONGEST_STEP: Final = 5.0
_HERE: Final = Path("/proc/self/cwd")
"""The folder of a run has the same path in every process: paths are parts of names."""
_END_WITH_PARENT: Final = 1
"""The option of Linux's `prctl` that kills a process when its parent ends."""


class Boot:
    """A process with a booted world. It runs one scenario at a time, each in a fork of its own.

    `change` is called in the process before the world boots, and `finish` after a run in the
    process of the run. `seed` decides how the world boots.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        prepared: Prepared,
        *,
        change: Callable[[], None],
        finish: Callable[[], None],
    ) -> None:
        self.seed = seed
        self.change = change
        self.has_ended = False
        """Whether the process can run nothing more, because it failed."""
        self._folder = folder
        self._answer = folder.with_suffix(".json")
        theirs, self._orders = os.pipe()
        self.answers, mine = os.pipe()
        """The descriptor from which a byte can be read when a run has ended."""
        folder.mkdir()
        self._pid = os.fork()
        if self._pid:
            os.close(theirs)
            os.close(mine)
            return
        try:
            _end_with_parent()
            signal.alarm(_MOST_SECONDS)
            server = _Server(folder.with_suffix(".links"), theirs, mine)
            self._run(prepared, server)
            finish()
        except BaseException:  # noqa: BLE001 - the child must never go on as the parent
            traceback.print_exc()
        finally:
            posix._exit(0)  # noqa: SLF001 - `os._exit` may be the one of simulated processes

    def _run(self, prepared: Prepared, server: "_Server") -> None:
        os.chdir(self._folder)
        self.change()
        # A collection takes long in a process of this size. Workers ask for one at their start, and
        # Python would begin one after a run, as soon as it is enabled again.
        gc.disable()
        gc.collect = lambda *_: 0
        gc.freeze = lambda: None
        outcome = run(self.seed, server.next_scenario, prepared)
        outcome.seconds += server.seconds
        self._answer.write_bytes(msgspec.json.encode(outcome))

    def begin(self, scenario: Scenario) -> None:
        """Begin to run a scenario."""
        self._scenario = scenario
        os.write(self._orders, msgspec.json.encode(scenario) + b"\n")

    def outcome(self) -> Outcome:
        """Wait for the end of the run."""
        self.has_ended = not os.read(self.answers, 1)
        try:
            return msgspec.json.decode(self._answer.read_bytes(), type=Outcome)
        except FileNotFoundError:
            why = "the run ended without an outcome"
            return Outcome(seed=self._scenario.seed, findings=[why])
        finally:
            self._answer.unlink(missing_ok=True)

    def close(self) -> None:
        """End the process, and a run with it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._orders)
        os.close(self.answers)
        for folder in (self._folder, self._folder.with_suffix(".links")):
            shutil.rmtree(folder, ignore_errors=True)


class _Server:
    """Forks a process that boots, for each scenario that it is told."""

    def __init__(self, links: Path, orders: int, answers: int) -> None:
        self.seconds = 0.0
        """Processor time that the process took since the last scenario."""
        self._links = links
        self._orders = os.fdopen(orders, "rb")
        self._answers = answers
        self._told = 0.0

    def next_scenario(self) -> Scenario:
        """Return in a new process for each scenario, and never in this one."""
        signal.alarm(0)
        strand, here.strand = here.strand, None
        snapshot = Snapshot(_HERE, self._links)
        while line := self._orders.readline():
            self.seconds, self._told = processor_seconds() - self._told, processor_seconds()
            pid = fork()
            if not pid:
                _end_with_parent()
                snapshot.open_again()
                signal.alarm(_MOST_SECONDS)
                _arm(_LONGEST_STEP)  # no timer outlives a fork
                here.strand = strand
                # asyncio forgets it in another process.
                _set_running_loop(strand.loop if strand is not None else None)
                return msgspec.json.decode(line, type=Scenario)
            os.waitpid(pid, 0)
            snapshot.restore()
            os.write(self._answers, b".")
        posix._exit(0)  # noqa: SLF001 - see above


def run(seed: int, choose: Callable[[], Scenario], prepared: Prepared) -> Outcome:
    """Boot the world under a seed, run the scenario that is chosen then, and judge it."""
    simulation = Simulation(seed, _HERE)
    it = Run(simulation, choose, prepared, _HERE)
    try:
        with watched(simulation):
            simulation.run(it.main, until=LONGEST)
    except BaseException as error:  # noqa: BLE001 - it is what was found
        it.findings.append(f"{type(error).__name__}: {error}")
        it.note("".join(traceback.format_exception(error)))
    scenario = it.scenario or choose()
    it.tell_requests()
    return Outcome(
        seed=scenario.seed,
        findings=it.findings,
        story=it.story,
        digest=simulation.trace.digest(),
        statuses=Counter(str(attempt.status) for attempt in it.attempts),
        virtual_seconds=simulation.now,
        seconds=processor_seconds(),
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
            _arm(0.0)  # the end of the run may take as long as a step
            raise NeverWaits(f"a step takes more than {longest:g} s of processor time")
        steps = simulation.scheduler.steps

    former = signal.signal(signal.SIGVTALRM, look)
    _arm(longest)
    try:
        yield
    finally:
        _arm(0.0)
        signal.signal(signal.SIGVTALRM, former)


def _arm(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)


def processor_seconds() -> float:
    """Return the processor time of this process. `time.process_time` may be simulated."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
