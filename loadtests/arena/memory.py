"""Samples the largest memory of each process of each container."""

import contextlib
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Self

from loadtests.arena.podman import run
from loadtests.arena.system import Arena

_EVERY = 3.0
_KIB = 1024

BOUNDS: dict[str, float] = {
    "gateway": 384,
    "backend": 1024,
    "billing": 256,
    "request-log": 256,
    "redis": 640,
    "sentinel": 128,
    "database": 384,
    "load-balancer": 128,
}
"""MiB of resident memory that one process of a kind may have, whatever fails."""


def kind_of(service: str) -> str:
    """Return the kind of a service: its name without number or region."""
    return next(kind for kind in BOUNDS if service.startswith(kind))


class MemorySampler:
    """Samples memory while entered; `largest` is in MiB by kind of process."""

    def __init__(self, arena: Arena) -> None:
        self.largest: defaultdict[str, float] = defaultdict(float)
        self._arena = arena
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            for service, mebibytes in self._sample():
                kind = kind_of(service)
                self.largest[kind] = max(self.largest[kind], mebibytes)

    def _sample(self) -> list[tuple[str, float]]:
        names = {service.container: name for name, service in self._arena.services.items()}
        spaces = {}
        for line in run("ps", "--format", "{{.Names}} {{.Pid}}", check=False).splitlines():
            container, pid = line.split()
            with contextlib.suppress(OSError):  # it ended meanwhile
                spaces[(Path("/proc") / pid / "ns/pid").readlink()] = names.get(container, "")
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                name = spaces.get((folder / "ns/pid").readlink())
                if name:
                    found.append((name, _resident(folder)))
        return found


def _resident(folder: Path) -> float:
    """Return the resident memory of a process in MiB, 0 if it has just ended."""
    lines = (folder / "status").read_text().splitlines()
    line = next((line for line in lines if line.startswith("VmRSS")), "VmRSS: 0")
    return int(line.split()[1]) / _KIB
