"""Measures the whole system: fills its caches, pins its processes and reads their time.

The measured process has one core, and everything else shares another core.
"""

import contextlib
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from loadtests.backend import RunningBackend
from loadtests.generator import Outcome, Target
from loadtests.machine import pin, processor_seconds, resident_mib
from loadtests.report import Costs, Turn
from loadtests.workload import sentences
from sluicegate.backends.model_tools.demo.build import build_demo_models
from testing.system import System

SERVER, OTHERS = 0, 1
"""The core of the measured process, and the core of all other processes."""
_LATER = ("shipper", "billing", "request-log")


@contextlib.contextmanager
def demo_models() -> Iterator[Path]:
    """Build the demo models below a temporary folder; delete the folder at the exit."""
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        build_demo_models(models, print)
        yield models


def classify_bodies(texts: Iterable[str]) -> list[bytes]:
    """Return a request for the labels of each text."""
    return [msgspec.json.encode({"model": "sentiment", "input": text}) for text in texts]


def popular_bodies() -> list[bytes]:
    """Return the hundred requests that the benchmarks of cache hits repeat."""
    return classify_bodies(sentences(100, seed=1))


def target_of(system: System, path: str = "/v1/classify", **headers: str) -> Target:
    """Return the target of the demo tenant's requests; `_` in a header's name becomes a hyphen."""
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
    """Pin the processes of one role to a core, and all others of the system to another."""
    pin((each.pid for each in system.processes(role)), core)
    pin((each.pid for each in system.processes() if each.role != role), others)


def memory_of(system: System) -> str:
    """Return a text with the memory of each process."""
    sizes = (
        f"{each.role} {each.region or each.index} {resident_mib(each.pid):.0f}"
        for each in system.processes()
    )
    return f"Proportional memory in MiB: {', '.join(sizes)}"


def fill(system: System, bodies: Iterable[bytes], path: str = "/v1/classify") -> list[bytes]:
    """Send each request twice, so that it is a hit from then on; return the answers."""
    with system.client() as client:
        return [
            [client.post(path, content=body).raise_for_status().content for _ in range(2)][1]
            for body in bodies
        ]


def settle(systems: Iterable[System]) -> None:
    """Wait until the events of the last run are shipped and billed.

    This work uses a processor core, so it would slow the next run.
    """
    processes = [p.pid for system in systems for p in system.processes() if p.role in _LATER]
    used = processor_seconds(*processes)
    for _ in range(120):
        time.sleep(0.5)
        before, used = used, processor_seconds(*processes)
        if used - before < 0.03:
            return
    raise TimeoutError("the events were not billed within 60 s")


def metered(
    run: Callable[[], Outcome],
    *,
    server: Sequence[int] = (),
    others: Sequence[int] = (),
    rest: Callable[[], None] = lambda: None,
) -> Callable[[], Turn]:
    """Return a function that calls `run` and then `rest`, and measures processor times.

    The server's time is measured during `run`, and the time of `others` during `run` and `rest`.
    """

    def turn() -> Turn:
        own, serving = own_seconds(), processor_seconds(*server)
        other = processor_seconds(*others)
        outcome = run()
        own, serving = own_seconds() - own, processor_seconds(*server) - serving
        rest()
        other = processor_seconds(*others) - other
        each = 1e6 / max(1, outcome.requests)
        return Turn(
            outcome, Costs(server=each * serving, others=each * other, generator=each * own)
        )

    return turn


def own_seconds() -> float:
    """Return the processor time of this process, and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
