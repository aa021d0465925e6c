"""Defines the faults of containers: how each begins, is kept up, and is undone."""

import contextlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

from typing_extensions import override

from loadtests.arena import topology
from loadtests.arena.podman import HOME, PodmanError, inspect, run
from loadtests.arena.system import Arena, ArenaError, wait_until
from loadtests.arena.topology import Service

_RESTART = 30.0
_START = 60.0
_FILE = ".fills-the-disk"
_CHUNK = b"\0" * 65_536


class Fault(ABC):
    """A fault of one container. All methods block."""

    hold = 30.0
    """Seconds between `begin` and `end`."""

    def __init__(self, arena: Arena, service: Service) -> None:
        self.arena = arena
        self.service = service

    @abstractmethod
    def begin(self) -> None:
        """Inject the fault."""

    def keep(self) -> None:  # noqa: B027 - most faults last by themselves
        """Repeat once a second what keeps the fault up."""

    @abstractmethod
    def end(self) -> None:
        """Undo the fault. The project has to recover by itself.

        A container that was away is back when its health check succeeds.
        """

    def ready(self) -> None:
        """Wait until the container is healthy."""
        self.arena.until_healthy([self.service.name], within=_START)


class Kill(Fault):
    """Sends SIGKILL to the whole container; the engine restarts it."""

    hold = 0.0

    @override
    def begin(self) -> None:
        self._before = inspect(self.service.container)
        os.kill(self._before.pid, signal.SIGKILL)

    @override
    def end(self) -> None:
        def is_back() -> bool:
            now = inspect(self.service.container)
            return now.status == "running" and now.pid not in (0, self._before.pid)

        wait_until(is_back, within=_RESTART, what=f"the engine did not restart {self.service.name}")
        self.ready()


class Stop(Fault):
    """Stops the container with SIGTERM as its engine does, and starts it later."""

    hold = 10.0

    @override
    def begin(self) -> None:
        service = self.service
        run("stop", "--time", str(service.grace), service.container, timeout=service.grace + 60)

    @override
    def end(self) -> None:
        run("start", self.service.container)
        self.ready()


class Freeze(Fault):
    """Suspends every process in the container while its kernel goes on accepting connections."""

    @override
    def begin(self) -> None:
        run("pause", self.service.container)

    @override
    def end(self) -> None:
        run("unpause", self.service.container)


class DropPackets(Fault):
    """Drops all packets in one direction, silently for both sides."""

    hold = 90.0
    chain = ""

    @override
    def begin(self) -> None:
        self._pid = inspect(self.service.container).pid
        self._iptables("--insert")

    @override
    def end(self) -> None:
        if Path(f"/proc/{self._pid}").exists():
            self._iptables("--delete")

    def _iptables(self, action: str) -> None:
        device = "--in-interface" if self.chain == "INPUT" else "--out-interface"
        rule = (action, self.chain, "!", device, "lo", "--jump", "DROP")
        command = ("nsenter", f"--target={self._pid}", "--net", "iptables", *rule)
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise ArenaError(f"the firewall of {self.service.name}: {done.stderr.strip()}")


class DropIncoming(DropPackets):
    """Drops packets to the container; those it sends arrive."""

    chain = "INPUT"


class DropOutgoing(DropPackets):
    """Drops packets from the container; those sent to it arrive."""

    chain = "OUTPUT"


class FullDisk(Fault):
    """Fills the container's volume and keeps it full."""

    hold = 45.0

    @override
    def begin(self) -> None:
        self.keep()

    @override
    def keep(self) -> None:
        folder = self.service.disk
        if folder is None:
            raise ArenaError(f"{self.service.name} has no disk")
        with contextlib.suppress(OSError), (folder / _FILE).open("ab", buffering=0) as file:
            size = len(_CHUNK)
            while size:
                try:
                    file.write(_CHUNK[:size])
                except OSError:  # no room for so much
                    size //= 2
            os.fsync(file.fileno())

    @override
    def end(self) -> None:
        if self.service.disk is not None:
            (self.service.disk / _FILE).unlink(missing_ok=True)


class ChangeAddress(Fault):
    """Recreates the container with another address under the same name."""

    hold = 0.0

    @override
    def begin(self) -> None:
        self._before = inspect(self.service.container).address
        topology.discard(self.service)

    @override
    def end(self) -> None:
        topology.start(self.service)
        now = inspect(self.service.container).address
        kept = [network for network, address in self._before.items() if now[network] == address]
        if kept:
            raise ArenaError(f"{self.service.name} has its old address in {', '.join(kept)}")
        self.ready()


class Replace(Fault):
    """Recreates the container from another version of its image, at the same address."""

    hold = 0.0

    @override
    def begin(self) -> None:
        self._image = next_version(self.service)
        self._former = inspect(self.service.container)
        topology.discard(self.service)

    @override
    def end(self) -> None:
        topology.start(self.service, image=self._image, former=self._former)
        self.ready()


class RollingReplace(Fault):
    """Replaces two containers of a kind, the second once the first is healthy."""

    hold = 0.0

    @override
    def begin(self) -> None:
        stem = self.service.name.rpartition("-")[0]
        for service in self.arena.services.values():
            if service.name.rpartition("-")[0] == stem:
                one = Replace(self.arena, service)
                one.begin()
                one.end()

    @override
    def end(self) -> None:
        """Do nothing: the fault ended with the second container."""


FAULTS: dict[str, type[Fault]] = {
    "kill": Kill,
    "stop": Stop,
    "freeze": Freeze,
    "cut-in": DropIncoming,
    "cut-out": DropOutgoing,
    "full": FullDisk,
    "address": ChangeAddress,
    "replace": Replace,
    "rolling": RollingReplace,
}


def next_version(service: Service) -> str:
    """Return the name of an image like that of `service`, with a label of its own."""
    version = str(int(time.time()))
    name = f"localhost/arena-{service.name}:next"
    folder = HOME / "next"
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(f"FROM {service.image}\nLABEL arena.version={version}\n")
    run("build", "--pull=never", "--network=none", f"--tag={name}", str(folder))
    return name


def clean_up(arena: Arena) -> None:
    """Undo the faults that an interrupted run left behind."""
    for service in arena.services.values():
        with contextlib.suppress(PodmanError):
            run("unpause", service.container)
        with contextlib.suppress(PodmanError, ArenaError, OSError):
            pid = inspect(service.container).pid
            if pid:
                flush = ("nsenter", f"--target={pid}", "--net", "iptables", "--flush")
                for chain in ("INPUT", "OUTPUT"):
                    subprocess.run((*flush, chain), check=False, capture_output=True)
        if service.disk is not None:
            (service.disk / _FILE).unlink(missing_ok=True)
