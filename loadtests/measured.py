"""Starts and places what a benchmark measures: the whole system, or a server that does nothing.

The measured process has a core, and everything else another one.
"""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from loadtests.backend import RunningBackend
from loadtests.generator import Target
from loadtests.machine import busy_seconds, pin, resident_mib
from loadtests.workload import sentences
from testing.ports import free_port
from testing.system import System
from testing.waiting import wait_until

SERVER, OTHERS = 0, 1
"""The core of the measured process, and the core of all others."""
BARE = "bare uvicorn, which does nothing"
_ROOT = Path(__file__).parents[1]
_TEXTS = 100
_LATER = ("shipper", "billing", "request-log")


def classify_bodies(texts: Iterable[str]) -> list[bytes]:
    """Return a request for the labels of each text."""
    return [msgspec.json.encode({"model": "sentiment", "input": text}) for text in texts]


def popular_bodies() -> list[bytes]:
    """Return the hundred requests of the benchmarks of hits."""
    return classify_bodies(sentences(_TEXTS, seed=1))


def target_of(system: System, path: str = "/v1/classify", **headers: str) -> Target:
    """Return where the demo tenant sends its requests; `_` in the name of a header is a hyphen."""
    more = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    key = ("authorization", f"Bearer {system.key}")
    return Target(host="127.0.0.1", port=system.port, path=path, headers=(key, *more))


def backends_of(system: System) -> list[RunningBackend]:
    """Return the backends that `up` has started."""
    return [
        RunningBackend(port=int((each.address or "").rpartition(":")[2]), pid=each.pid)
        for each in system.processes("backend")
    ]


def give_core(system: System, role: str, core: int = SERVER, *, others: int = OTHERS) -> None:
    """Keep the processes of one role on a core, and all others of the system on another."""
    pin((each.pid for each in system.processes(role)), core)
    pin((each.pid for each in system.processes() if each.role != role), others)


def memory_of(system: System) -> dict[str, float]:
    """Return the MiB of each process."""
    return {
        f"{process.role} {process.region or process.index}": resident_mib(process.pid)
        for process in system.processes()
    }


def fill(system: System, bodies: Iterable[bytes], path: str = "/v1/classify") -> list[bytes]:
    """Send each request twice, so that it is a hit afterwards; return the answers."""
    with system.client() as client:
        return [
            [client.post(path, content=body).raise_for_status().content for _ in range(2)][1]
            for body in bodies
        ]


def settle(systems: Iterable[System]) -> None:
    """Wait until the events of the last run are shipped and billed: the next run needs the core."""
    processes = [p.pid for system in systems for p in system.processes() if p.role in _LATER]
    seen = [sum(map(busy_seconds, processes))]

    def is_quiet() -> bool:
        used = sum(map(busy_seconds, processes))
        rests = used - seen[0] < 0.03
        seen[0] = used
        time.sleep(0.5)
        return rests

    time.sleep(0.5)
    wait_until(is_quiet, within=60, what="events are billed")


class BareServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that sends the same bytes, whatever it is asked."""

    target: Target
    pid: int


@contextlib.contextmanager
def bare_server(
    *, length: int = 330, core: int | None = SERVER, status: int = 200, delay: float = 0.0
) -> Iterator[BareServer]:
    """Run uvicorn with an application that sends `length` bytes after `delay` seconds."""
    port = free_port()
    arguments = [str(each) for each in (port, length, status, delay)]
    command = [sys.executable, "-m", "loadtests.bare_server", *arguments]
    child = subprocess.Popen(command, cwd=_ROOT)
    try:
        wait_until(lambda: _listens(port), what="the bare server listens")
        if core is not None:
            pin([child.pid], core)
        target = Target(host="127.0.0.1", port=port, path="/")
        yield BareServer(target=target, pid=child.pid)
    finally:
        child.terminate()
        child.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
