"""Measures each process's time for a cache miss, with a model that takes no processor time.

`sluicegate up` runs as a user starts it. Its backend has a device that sleeps instead of computing.
The executor of that device takes some processor time itself, which is subtracted from the backend's
time. A bare server is measured in the same rounds. Its processor time for a request is the unit of
all other times. With fewer than four cores, the generator shares the gateway's core.

The benchmark also computes for how many rows a second one core is enough, and how many cores 50,000
rows a second need. Both figures leave out the executor of a real device.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from shutil import copytree
from statistics import median
from typing import NamedTuple

import click
import msgspec

from loadtests.backend import RunningBackend, backend
from loadtests.bare_server import bare_server
from loadtests.generator import CALLERS, OK, Outcome, run_closed
from loadtests.machine import pin, processor_seconds
from loadtests.measured import backends_of, demo_models, own_seconds, settle, target_of
from loadtests.options import rounds
from loadtests.report import Line, show
from loadtests.turns import in_turns, paired
from loadtests.workload import sentences
from sluicegate.backends.executors.padded_batch import ones
from sluicegate.backends.executors.simulated import SimulatedExecutor
from sluicegate.backends.types import OutputKind
from testing.system import System

_ROOT = Path(__file__).parents[1]
_MODEL, _ENCODER, _DIMENSIONS = "sentiment", "minilm", 384
_MOST_ITEMS = 2048  # in flight; a backend queues up to 4,096 rows
_BARE_REQUESTS = 4096
_CORES = {"gateway": 0, "backend": 1}
_GENERATOR_CORE, _OTHER_CORE = 2, 3
_RUNS = 2  # batches that the device runs at the same time
_REPLAYS = 40  # batches with which the executor's own time is measured
_AIM = 50_000  # rows a second
# The batch limits of a backend on a GPU.
_GPU_BATCHES = {
    "SLUICEGATE_BACKEND_MAX_BATCH_ROWS": "256",
    "SLUICEGATE_BACKEND_MAX_BATCH_TOKENS": "32768",
}
_ROLES = {
    "gateway": ("gateway",),
    "events": ("shipper", "billing", "request-log"),
    "Valkeys": ("valkey-cache", "valkey-state"),
}


class PacedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that sleeps `base` seconds for each batch and `token` for each of its tokens."""

    base: float = 1e-3
    token: float = 1e-6

    def environment(self) -> dict[str, str]:
        """Return the settings of a backend that has this device."""
        return {
            "SLUICEGATE_BACKEND_PROVIDER": "paced",
            "SLUICEGATE_BACKEND_THREADS": str(_RUNS),
            "SLUICEGATE_BACKEND_PACED_BASE": str(self.base),
            "SLUICEGATE_BACKEND_PACED_TOKEN": str(self.token),
        }

    def microseconds(self, batches: float, rows: float, padded_tokens: float) -> float:
        """Return the executor's own processor time for a row, in batches of this shape."""
        executor = SimulatedExecutor(
            dimensions=_DIMENSIONS, worker_threads=_RUNS, base=self.base, token=self.token
        )
        size, length = max(1, round(rows / batches)), max(1, round(padded_tokens / rows))
        batch = ones(size, length, OutputKind.POOLED)
        used = time.thread_time()
        for _ in range(_REPLAYS):
            executor.run(batch)
        return 1e6 * (time.thread_time() - used) / _REPLAYS / size


class _Sample(NamedTuple):
    """The result of one run: its outcome, and each process's microseconds for an item."""

    outcome: Outcome
    costs: dict[str, float]


class Pipeline:
    """Sends items that miss to a running system with these backends."""

    def __init__(self, system: System, backends: Sequence[RunningBackend]) -> None:
        self.system = system
        self._backends = backends
        self._target = target_of(system)
        self.processes = {
            what: [p.pid for role in roles for p in system.processes(role)]
            for what, roles in _ROLES.items()
        } | {"backend": [each.pid for each in backends]}

    def run(self, texts: Sequence[str], *, items: int, connections: int) -> Outcome:
        """Send `texts`, with `items` texts in a request.

        Raises:
            RuntimeError: a request was refused, or an item was not computed because it was cached.
        """
        bodies = [
            msgspec.json.encode({"model": _MODEL, "input": texts[at : at + items]})
            for at in range(0, len(texts), items)
        ]
        rows = self.counters()[1]
        found = run_closed(self._target, iter(bodies), connections=connections, duration=60)
        rows = self.counters()[1] - rows
        if found.statuses != {OK: len(bodies)} or round(rows) != len(texts):
            raise RuntimeError(f"of {len(texts)} items {rows:.0f} were computed: {found.statuses}")
        return found

    def used(self) -> dict[str, float]:
        """Return the processor time that each process has used so far."""
        return {what: processor_seconds(*pids) for what, pids in self.processes.items()}

    def counters(self) -> tuple[float, float, float]:
        """Return how many batches, rows and padded tokens the backends ran."""
        batches, rows, tokens = (
            sum(backend.counter(name, _ENCODER) for backend in self._backends)
            for name in ("batches_total", "rows_total", "padded_tokens_total")
        )
        return batches, rows, tokens


@click.command()
@click.option("--items", "sizes", default="1,16,256", help="Items of a request.")
@click.option("--count", default=8192, help="Number of items in each run.")
@rounds(5)
@click.option("--topology", type=click.Choice(["one", "gpu"]), default="one")
@click.option("--backends", default=2, help="Backends of the topology `gpu`.")
def measure(*, sizes: str, count: int, rounds: int, topology: str, backends: int) -> None:
    """Measure each process's time for a cache miss, with a model that takes no processor time.

    In the topology `gpu`, several backends share the device, and no process is pinned to a core.
    """
    device = PacedDevice()
    is_shared = topology == "gpu"
    number = backends if is_shared else 1
    items = [int(size) for size in sizes.split(",")]
    texts = iter(sentences((rounds + 1) * len(items) * count, seed=3))
    environment = device.environment() | (_GPU_BATCHES if is_shared else {})
    with (
        _running(environment, number) as pipeline,
        bare_server(core=None if is_shared else _CORES["gateway"]) as bare,
    ):
        if not is_shared:
            pin([os.getpid()], _GENERATOR_CORE)
            for what, pids in pipeline.processes.items():
                pin(pids, _CORES.get(what, _OTHER_CORE))

        def run_bare() -> _Sample:
            bodies = itertools.repeat(b'{"model":"sentiment","input":"a film"}', _BARE_REQUESTS)
            used = processor_seconds(bare.pid)
            outcome = run_closed(bare.target, bodies)
            used = processor_seconds(bare.pid) - used
            return _Sample(outcome, {"together": 1e6 * used / _BARE_REQUESTS})

        # The first of the rounds only warms up.
        run = partial(_measured, pipeline, device, texts, count)
        turns = in_turns({0: run_bare} | {each: partial(run, each) for each in items}, rounds + 1)
    units = [sample.costs["together"] for sample in turns[0][1:]]
    show(
        f"Pipeline{' of a GPU' if is_shared else ''}: misses of a model that takes no time",
        [line for each in items for line in _lines(each, turns[each][1:], units)],
        f"A request to a bare server takes {median(units):.1f} µs. Backends: {number}.",
    )


def _measured(
    pipeline: Pipeline, device: PacedDevice, texts: Iterator[str], count: int, items: int
) -> _Sample:
    """Send `count` new texts, `items` in a request; return the time of each process."""
    own = list(itertools.islice(texts, count))
    shape, before, generator = pipeline.counters(), pipeline.used(), own_seconds()
    callers = max(1, min(CALLERS, _MOST_ITEMS // items))
    outcome = pipeline.run(own, items=items, connections=callers)
    generator = own_seconds() - generator
    serving = pipeline.used()
    settle([pipeline.system])
    ended = pipeline.used() | {what: serving[what] for what in ("gateway", "backend")}
    costs = {what: 1e6 * (used - before[what]) / count for what, used in ended.items()}
    ran = (now - then for now, then in zip(pipeline.counters(), shape, strict=True))
    executor = device.microseconds(*ran)
    costs["backend"] -= executor
    costs["together"] = sum(costs.values())
    costs |= {"generator": 1e6 * generator / count, "executor, left out": executor}
    return _Sample(outcome, costs)


def _lines(items: int, samples: Sequence[_Sample], units: Sequence[float]) -> list[Line]:
    """Return an item's processor time in microseconds, and in multiples of a bare server's time."""
    together = median(sample.costs["together"] for sample in samples)
    ways = {"µs": [1.0] * len(samples), "bare requests": units}
    return [
        {
            "items a request": items,
            "an item takes": what,
            **{
                name: paired([sample.costs[name] for sample in samples], unit)
                for name in samples[0].costs
            },
            "items/s": items * median(sample.outcome.rate for sample in samples),
            "rows/s a core": 1e6 / together,
            f"cores for {_AIM:,} rows/s": _AIM * together / 1e6,
        }
        for what, unit in ways.items()
    ]


@contextlib.contextmanager
def _running(environment: dict[str, str], backends: int) -> Iterator[Pipeline]:
    """Start the system with backends that share a device."""
    with demo_models() as models:
        config = Path(copytree(_ROOT / "config", models.parent / "config"))
        data = models.parent / "data"
        with (
            System(data, models=models, config=config, environment=environment) as system,
            sharing_backends(system, models, config, environment, count=backends) as running,
        ):
            yield Pipeline(system, running)


@contextlib.contextmanager
def sharing_backends(
    system: System, models: Path, config: Path, environment: Mapping[str, str], *, count: int
) -> Iterator[list[RunningBackend]]:
    """Yield `count` backends of one region: the backend of `system`, and new backends.

    Gateways spread items over them in the same way as over backends that share a GPU.
    """
    region = system.processes("backend")[0].region or ""
    prefix = "SLUICEGATE_BACKEND_"
    settings = {name.removeprefix(prefix).lower(): value for name, value in environment.items()}
    running = backends_of(system)
    with contextlib.ExitStack() as stack:
        for number in range(len(running), count):
            own = {"region": region, "backend_id": f"{region}-{number}"}
            running.append(stack.enter_context(backend(models, **settings, **own)))
        if len(running) > len(backends_of(system)):
            _place(system, config, region, running)
        yield running


def _place(system: System, config: Path, region: str, backends: Sequence[RunningBackend]) -> None:
    """Let all workers send items to these backends."""
    pool = [
        {"id": f"{region}-{number}", "url": f"http://127.0.0.1:{each.port}"}
        for number, each in enumerate(backends)
    ]
    regions = [{"name": region, "pools": [{"backends": pool}]}]
    placement = system.data_dir / "placement.yaml"
    placement.write_bytes(msgspec.json.encode({"regions": regions}))  # JSON is YAML
    # A document that has not changed is not published again.
    models = config / "models.yaml"
    models.write_text(f"{models.read_text()}# Placed anew.\n")
    with system.admin() as admin:
        admin.post("/admin/config/reload").raise_for_status()
