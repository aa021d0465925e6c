"""Measures the processor time of each process for a missed item, with a model that takes none.

`sluicegate up` runs as a user starts it, with a backend whose device sleeps instead of computing.
The work that the executor of that device does itself is measured apart and taken off the backend's
time. Bare uvicorn is measured in the same turns: its request is the unit. Where there are fewer
than four cores, the generator shares the gateway's.

In the topology of a GPU several backends share the device, as on a machine that has one. The time
of all processes for an item then gives the rows a second of a core, and the cores for 50,000 rows a
second. It excludes the executor of a real device.
"""

import contextlib
import itertools
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from shutil import copytree
from statistics import median
from typing import NamedTuple

import click
import msgspec

from backends.executors.dummy import SimulatedExecutor
from backends.executors.padded_batch import ones
from backends.types import OutputKind
from loadtests.backend import RunningBackend, backend
from loadtests.generator import OK, Outcome, run_closed
from loadtests.machine import pin, processor_seconds
from loadtests.measured import backends_of, bare_server, demo_models, own_seconds, target_of
from loadtests.options import rounds
from loadtests.report import Line, show
from loadtests.turns import in_turns, paired
from loadtests.workload import sentences
from testing.system import System
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[1]
_MODEL, _ENCODER, _DIMENSIONS = "sentiment", "minilm", 384
_CONNECTIONS, _MOST_ITEMS = 32, 2048  # in flight: a backend queues up to 4,096 rows
_BARE_REQUESTS = 4096
_GATEWAY_CORE, _BACKEND_CORE, _GENERATOR_CORE, _OTHER_CORE = range(4)
_RUNS = 2  # batches that the device runs at a time
_REPLAYS = 40  # batches that tell what the executor itself takes
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
        """Return the settings of a backend that has it."""
        return {
            "SLUICEGATE_BACKEND_PROVIDER": "paced",
            "SLUICEGATE_BACKEND_THREADS": str(_RUNS),
            "SLUICEGATE_BACKEND_PACED_BASE": str(self.base),
            "SLUICEGATE_BACKEND_PACED_TOKEN": str(self.token),
        }

    def microseconds(self, batches: float, rows: float, padded_tokens: float) -> float:
        """Return the processor time of the executor itself for a row in batches of this shape."""
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
    """The result of one run: its outcome, and the microseconds of an item by process."""

    outcome: Outcome
    costs: dict[str, float]


class Pipeline:
    """Sends missed items to a running system with these backends."""

    def __init__(self, system: System, backends: Sequence[RunningBackend]) -> None:
        self._system = system
        self._backends = backends
        self._target = target_of(system)
        self._billed = self._billed_requests()
        self.processes = {
            what: [p.pid for role in roles for p in system.processes(role)]
            for what, roles in _ROLES.items()
        } | {"backend": [each.pid for each in backends]}

    def pin(self) -> None:
        """Give the gateway and the backend a core each; events and Valkeys share another."""
        cores = {"gateway": _GATEWAY_CORE, "backend": _BACKEND_CORE}
        for what, pids in self.processes.items():
            pin(pids, cores.get(what, _OTHER_CORE))

    def run(self, texts: Sequence[str], *, items: int, connections: int) -> Outcome:
        """Send `texts`, `items` of them a request.

        Raises:
            RuntimeError: something was refused, or not computed because it was known.
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
        self._billed += len(bodies)
        return found

    def used(self) -> dict[str, float]:
        """Return the processor time that all processes have used."""
        return {what: sum(map(processor_seconds, pids)) for what, pids in self.processes.items()}

    def settle(self) -> None:
        """Wait until all that was sent is billed."""
        wait_until(
            lambda: self._billed_requests() >= self._billed,
            within=60,
            what="all is billed",
            every=0.2,
        )
        time.sleep(0.5)  # for the request log

    def counters(self) -> tuple[float, float, float]:
        """Return how many batches, rows and padded tokens the backends ran."""
        batches, rows, tokens = (
            sum(backend.counter(name, _ENCODER) for backend in self._backends)
            for name in ("batches_total", "rows_total", "padded_tokens_total")
        )
        return batches, rows, tokens

    def _billed_requests(self) -> int:
        with contextlib.closing(sqlite3.connect(self._system.data_dir / "ledger.db")) as ledger:
            (count,) = ledger.execute("SELECT sum(requests) FROM usage_events").fetchone()
        return int(count or 0)


@click.command()
@click.option("--items", "sizes", default="1,16,256", help="Items of a request.")
@click.option("--count", default=8192, help="Items of each run.")
@rounds(5)
@click.option("--base", default=1e-3, help="Seconds of a batch.")
@click.option("--token", default=1e-6, help="Seconds of each of its tokens.")
@click.option("--topology", type=click.Choice(["one", "gpu"]), default="one")
@click.option("--backends", default=2, help="Of the topology `gpu`.")
def measure(
    *,
    sizes: str,
    count: int,
    rounds: int,
    base: float,
    token: float,
    topology: str,
    backends: int,
) -> None:
    """Measure each process's processor time per missed item, with a model that takes none.

    In the topology `gpu`, several backends share the device, and no process is kept on a core.
    """
    device = PacedDevice(base=base, token=token)
    is_shared = topology == "gpu"
    number = backends if is_shared else 1
    texts = iter(sentences((rounds + 1) * len(sizes.split(",")) * count, seed=3))
    environment = device.environment() | (_GPU_BATCHES if is_shared else {})
    with (
        _running(environment, number) as pipeline,
        bare_server(core=None if is_shared else _GATEWAY_CORE) as bare,
    ):
        if not is_shared:
            pin([os.getpid()], _GENERATOR_CORE)
            pipeline.pin()

        def run_bare() -> _Sample:
            bodies = iter([b'{"model":"sentiment","input":"a film"}'] * _BARE_REQUESTS)
            used = processor_seconds(bare.pid)
            outcome = run_closed(bare.target, bodies, connections=_CONNECTIONS)
            used = processor_seconds(bare.pid) - used
            return _Sample(outcome, {"together": 1e6 * used / _BARE_REQUESTS})

        items = tuple(map(int, sizes.split(",")))
        # One more round, the first, warms up.
        run = partial(_measured, pipeline, device, texts, count)
        turns = in_turns({0: run_bare} | {each: partial(run, each) for each in items}, rounds + 1)
    units = [sample.costs["together"] for sample in turns[0][1:]]
    show(
        f"Pipeline{' of a GPU' if is_shared else ''}: misses of a model that takes no time",
        [line for each in items for line in _lines(each, turns[each][1:], units)],
        f"A request to bare uvicorn takes {median(units):.1f} µs. Backends: {number}.",
    )


def _measured(
    pipeline: Pipeline, device: PacedDevice, texts: Iterator[str], count: int, items: int
) -> _Sample:
    """Send `count` new texts, `items` of them a request; return the time of each process."""
    own = list(itertools.islice(texts, count))
    shape, before, generator = pipeline.counters(), pipeline.used(), own_seconds()
    callers = max(1, min(_CONNECTIONS, _MOST_ITEMS // items))
    outcome = pipeline.run(own, items=items, connections=callers)
    generator = own_seconds() - generator
    serving = pipeline.used()
    pipeline.settle()
    ended = pipeline.used() | {what: serving[what] for what in ("gateway", "backend")}
    costs = {what: 1e6 * (used - before[what]) / count for what, used in ended.items()}
    ran = (now - then for now, then in zip(pipeline.counters(), shape, strict=True))
    executor = device.microseconds(*ran)
    costs["backend"] -= executor
    costs["together"] = sum(costs.values())
    costs |= {"generator": 1e6 * generator / count, "executor, left out": executor}
    return _Sample(outcome, costs)


def _lines(items: int, samples: Sequence[_Sample], units: Sequence[float]) -> list[Line]:
    """Return the processor time of an item in microseconds, and in requests to bare uvicorn."""
    together = median(sample.costs["together"] for sample in samples)
    outcomes = [sample.outcome for sample in samples]
    ways = {"µs": [1.0] * len(samples), "bare requests": units}
    return [
        {
            "items a request": items,
            "an item takes": what,
            **{
                name: paired([sample.costs[name] for sample in samples], unit)
                for name in samples[0].costs
            },
            "items/s": items * median(outcome.rate for outcome in outcomes),
            "p50 ms": 1e3 * median(outcome.percentile(0.5) for outcome in outcomes),
            "p99 ms": 1e3 * median(outcome.percentile(0.99) for outcome in outcomes),
            "rows/s a core": 1e6 / together,
            f"cores for {_AIM:,} rows/s": _AIM * together / 1e6,
        }
        for what, unit in ways.items()
    ]


@contextlib.contextmanager
def _running(environment: dict[str, str], backends: int) -> Iterator[Pipeline]:
    """Start the system with backends that share a device; all of them must get work."""
    with demo_models() as models:
        config = Path(copytree(_ROOT / "config", models.parent / "config"))
        data = models.parent / "data"
        with (
            System(data, models=models, config=config, environment=environment) as system,
            sharing_backends(system, models, config, environment, count=backends) as running,
        ):
            yield Pipeline(system, running)
            unused = [each for each in running if not each.counter("rows_total", _ENCODER)]
            if unused:
                raise RuntimeError(f"backends were asked nothing: {unused}")


@contextlib.contextmanager
def sharing_backends(
    system: System, models: Path, config: Path, environment: Mapping[str, str], *, count: int
) -> Iterator[list[RunningBackend]]:
    """Yield `count` backends of one region: the backend of `system`, and others beside it.

    Gateways spread items over them as over backends that share a GPU.
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
    """Have all workers ask these backends."""
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
