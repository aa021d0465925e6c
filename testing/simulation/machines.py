"""Simulated machines and their processes."""

import asyncio
import ctypes
import fcntl
import os
import random
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

from testing.simulation.clock import Clock
from testing.simulation.databases import close_all
from testing.simulation.disk import Disk
from testing.simulation.loop import SimulatedLoop, run_main
from testing.simulation.network import LOOPBACK, Network
from testing.simulation.scheduler import Scheduler, Strand, here
from testing.simulation.sockets import SimulatedSocket

if TYPE_CHECKING:
    from testing.simulation.threads import Lock

Main = Callable[[], Awaitable[Any]]


class Process:
    """A process of a machine: an event loop of its own, threads, sockets and locks."""

    def __init__(self, machine: "Machine", name: str, pid: int, seed: object) -> None:
        self.machine = machine
        self.name = name
        self.pid = pid
        self.label = f"{machine.name}/{name}"
        self.random = random.Random(f"{seed} {self.label} {pid}")
        self.generators: list[ref[random.Random]] = []
        """What the process draws from, beside `random`, and has seeded from it."""
        self.is_alive = True
        self.is_paused = False
        self.result: Any = None
        self.failure: BaseException | None = None
        self.loop: SimulatedLoop | None = None
        self.threads = 0
        self.strands: list[Strand] = []
        self.sockets: dict[SimulatedSocket, None] = {}
        self.file_locks: dict[int, None] = {}
        """Descriptors that have a lock of `flock`."""
        self.shared_locks: dict[int, Lock] = {}
        """Locks of modules, which other simulated processes use, too."""
        self.databases: list[ref[sqlite3.Connection]] = []
        self.calls_left: int | None = None
        """After so many more sends, commits and syncs, the process is killed."""
        self.counts_from: tuple[str, int] | None = None
        """An address, and what `calls_left` is once that data from there has arrived."""
        self.deferred: list[Callable[[], object]] = []
        self._on_end: list[Callable[[], object]] = []
        self.main: Strand

    def reseed(self, seed: object) -> None:
        """Draw all random values from another seed."""
        self.random.seed(f"{seed} {self.label} {self.pid}")
        for each in self.generators:
            generator = each()
            if generator is not None:
                generator.seed(self.random.randbytes(16))

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended. A paused process runs."""
        return self.is_alive

    def run(self, main: Main) -> None:
        """Run `main` in the first thread, then end."""

        async def steps() -> Any:
            return await main()

        try:
            self.result = run_main(self, steps)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the process ends by it, and others go on
            self.failure = error
        self.end("ended" if self.failure is None else f"failed: {self.failure!r}")

    def kill(self) -> None:
        """End the process as SIGKILL does: nothing of it runs again, not even `finally`."""
        self.end("killed")

    def count_call(self) -> None:
        """Count a send, a commit or a sync that is about to happen; see `calls_left`."""
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left <= 0:
                self.kill()

    def count_arrival(self, address: str) -> None:
        """Note that data of an address is about to be read; see `counts_from`."""
        if self.counts_from is not None and self.counts_from[0] == address:
            self.calls_left, self.counts_from = self.counts_from[1], None

    def end(self, how: str) -> None:
        """End the process. The kernel closes its connections and releases its locks."""
        if not self.is_alive:
            return
        self.is_alive = False
        scheduler = self.machine.scheduler
        scheduler.trace.note(scheduler.now, self.label, how)
        # Never freed: freeing a thread or a task would run its `finally`.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        for strand in self.strands:
            for call in strand.run_at_end:
                call()
        self._release()
        self.machine.processes.remove(self)
        for call in self._on_end:
            call()
        if current_process() is self:
            scheduler.leave()

    def _release(self) -> None:
        """Give back what the kernel takes from a process that has ended."""
        close_all(self.databases)
        if self.loop is not None:
            self.loop.abandon()
        for lock in list(self.shared_locks.values()):
            lock.release()
        for descriptor in list(self.file_locks):
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        for each in list(self.sockets):
            each.close()

    def pause(self) -> None:
        """Stop the process as SIGSTOP does. Its connections stay."""
        self.is_paused = True

    def resume(self) -> None:
        """Let a paused process go on."""
        self.is_paused = False
        deferred, self.deferred = self.deferred, []
        scheduler = self.machine.scheduler
        for call in deferred:
            scheduler.at(scheduler.now, f"{self.label} resumed", call)

    def signal(self, number: int) -> bool:
        """Send a signal with a handler on the loop; return whether there is one."""
        return self.loop is not None and self.is_alive and self.loop.signal(number)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function soon on the event loop of the process."""
        if self.loop is not None and self.is_alive:
            self.loop.call_soon_threadsafe(function)

    async def wait(self) -> Any:
        """Wait for the end; return the result of `main`, `None` if it was killed, or raise."""
        process = here.strand.process if here.strand is not None else self
        loop = process.loop
        assert loop is not None
        ended = loop.create_future()
        if self.is_alive:
            self._on_end.append(lambda: process.call(partial(_end, ended)))
            await ended
        if self.failure is not None:
            raise self.failure
        return self.result


def _end(ended: "asyncio.Future[None]") -> None:
    if not ended.done():
        ended.set_result(None)


class Machine:
    """A machine: an address, clocks, a disk and processes."""

    def __init__(
        self,
        name: str,
        address: str,
        *,
        scheduler: Scheduler,
        network: Network,
        folder: Path,
        seed: object,
    ) -> None:
        self.name = name
        self.address = address
        self.addresses = {address, LOOPBACK}
        self.scheduler = scheduler
        self.network = network
        self._random = random.Random(f"{seed} {name}")
        self._seed = seed
        self.clock = Clock(scheduler, uptime=self._random.uniform(1e3, 1e5))
        self.disk = Disk(folder, seed, self.clock.time)
        self.is_up = True
        self.database_timeout: float | None = None
        """Seconds after which statements to databases of other machines fail; `None` while these
        databases are reached."""
        self.commit_timeout: float | None = None
        """Seconds after which commits fail that are done, but whose answers are lost; `None` while
        answers arrive."""
        self.database_losses = 0
        """How often the machine has lost them, and with them all connections."""
        self.last_port = 0
        self.processes: list[Process] = []
        self._pids = 100
        self.boot_id = self._new_boot_id()
        self.hostname = name
        """Another one after each crash, as of a new container."""

    @property
    def folder(self) -> Path:
        """The folder of the machine's files."""
        return self.disk.folder

    def start(self, name: str, main: Main) -> Process:
        """Start a process that runs the coroutine of `main`. A crashed machine boots first."""
        if not self.is_up:
            self.boot()
        self._pids += 1
        process = Process(self, name, self._pids, self._seed)
        first = process.main = Strand(process, "main", lambda: process.run(main))
        process.strands.append(first)
        self.processes.append(process)
        self.scheduler.trace.note(self.scheduler.now, process.label, f"starts as {process.pid}")
        self.scheduler.start(first)
        return process

    def listener(self, host: str, port: int, process: Process | None = None) -> SimulatedSocket:
        """Return a socket that is bound to an address, of `process` or of the running process."""
        running = current_process()
        if process is None and running is not None and running.machine is self:
            process = running
        found = SimulatedSocket(machine=self, process=process)
        found.bind((host, port))
        return found

    def crash(self) -> None:
        """Cut the power: all processes end, peers are not told, unsynced writes may be lost."""
        self.scheduler.trace.note(self.scheduler.now, self.name, "crashes")
        self.is_up = False
        for endpoint in self.network.of_machine(self):
            endpoint.die()
            if endpoint.peer is not None:
                endpoint.peer.probe_later()
        if current_process() in self.processes:
            raise RuntimeError("a process cannot cut the power of its own machine")
        for process in list(self.processes):
            process.end("lost power")
        self.disk.lose_power()

    def lose_databases(self, timeout: float) -> None:
        """Break the connections to databases of other machines. New ones fail after `timeout` s."""
        self.database_timeout = timeout
        self.database_losses += 1

    def boot(self) -> None:
        """Switch a crashed machine on again, without processes."""
        self.is_up = True
        self.boot_id = self._new_boot_id()
        self.hostname = f"{self.name}-{self.boot_id[:4]}"
        self.clock.restart()
        self.scheduler.trace.note(self.scheduler.now, self.name, f"boots as {self.boot_id}")

    def reseed(self, seed: object) -> None:
        """Draw all random values from another seed."""
        self._seed = seed
        self._random.seed(f"{seed} {self.name}")
        self.disk.reseed(seed)
        for process in self.processes:
            process.reseed(seed)

    def _new_boot_id(self) -> str:
        text = self._random.randbytes(16).hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def current_process() -> Process | None:
    """Return the running simulated process, `None` outside a simulation."""
    return here.strand.process if here.strand is not None else None


def exit_now(code: int) -> None:
    """End the running simulated process as `os._exit` does, or the real one."""
    strand = here.strand
    if strand is None:
        _real_exit(code)
    else:
        strand.process.end(f"exits with {code}")


_real_exit = os._exit
