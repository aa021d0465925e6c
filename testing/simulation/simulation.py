"""Composes a simulated world: one seed decides the order of everything that happens in it."""

import concurrent.futures.thread
import gc
import math
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from testing.simulation.hashing import numbers
from testing.simulation.machines import Machine, Process
from testing.simulation.network import Network
from testing.simulation.scheduler import Scheduler
from testing.simulation.trace import Trace


class Simulation:
    """Has the machines and the network of a run. Their files are in folders of `folder`."""

    def __init__(self, seed: int, folder: Path, *, keeps_steps: bool = False) -> None:
        self.seed = seed
        self.trace = Trace(keeps_steps=keeps_steps)
        self.scheduler = Scheduler(seed, self.trace)
        self.network = Network(self.scheduler, seed)
        self.random = random.Random(f"world {seed}")
        """Chooses faults and loads. The system under test never draws from it."""
        self.machines: dict[str, Machine] = {}
        self._folder = folder

    @property
    def now(self) -> float:
        """Seconds of virtual time since the start."""
        return self.scheduler.now

    def machine(self, name: str, *, address: str) -> Machine:
        """Add a machine."""
        if name in self.machines or address in self.network.machines:
            raise ValueError(f"there is a machine `{name}` or `{address}` already")
        machine = Machine(
            name,
            address,
            scheduler=self.scheduler,
            network=self.network,
            folder=self._folder / name,
            seed=self.seed,
        )
        self.machines[name] = self.network.machines[address] = machine
        return machine

    def reseed(self, seed: int) -> None:
        """Draw all random values from another seed from now on.

        So a world that has started goes on in another way under each seed.
        """
        self.note(f"goes on under seed {seed}")
        self.seed = seed
        random.seed(f"{seed}")
        self.random.seed(f"world {seed}")
        self.scheduler.random.seed(f"order {seed}")
        self.network.random.seed(f"network {seed}")
        for machine in self.machines.values():
            machine.reseed(seed)

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.note(self.now, "world", what)

    def run(
        self,
        main: Callable[[], Coroutine[Any, Any, Any]],
        *,
        until: float = math.inf,
        collect: bool = False,
    ) -> Any:
        """Run `main` in a process of a machine of its own, and return its result.

        Everything ends with it, where it stands. Garbage is collected during the run only to
        `collect` it, because that calls finalizers at moments that depend on the interpreter.

        Raises:
            Deadlock, LiveLock, OutOfTime: see there.
        """
        numbers.restart()
        random.seed(f"{self.seed}")
        for machine in self.machines.values():
            machine.disk.stamp_below(machine.folder)
        director = self.machine("director", address="10.255.255.1")
        process = director.start("main", main)
        was_enabled = gc.isenabled()
        if not collect:
            gc.disable()
        try:
            self.scheduler.run(until=until, is_over=lambda: not process.is_alive)
        finally:
            self._end(director.processes)
            if was_enabled:
                gc.enable()
        if process.failure is not None:
            raise process.failure
        return process.result

    def _end(self, processes: list[Process]) -> None:
        for machine in self.machines.values():
            for process in list(machine.processes):
                process.end("the run is over")
        assert not processes
        # Otherwise the interpreter waits at its end for threads that never run again.
        vars(concurrent.futures.thread)["_threads_queues"].clear()
