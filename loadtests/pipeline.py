"""Measures the processor time of each process for a missed item, with a model that takes none.

`sluicegate up` runs as a user starts it, with a backend whose device sleeps instead of computing.
What the executor of that device does itself is measured apart and taken off the backend's time;
so is what each process takes without work, at rates that are printed: work replaces some of the
idle wake-ups, so a figure may be too small by what was taken off at most.
All is in microseconds an item, and in units of what bare uvicorn takes for a request just before
and after each run. Where there are fewer than four cores, the generator shares the gateway's.

In the topology of a GPU several backends share the device, as on a machine that has one. The time
of all processes for an item then gives the rows a second of a core, and the cores for 50,000 rows a
second. It excludes the executor of a real device.
"""

import contextlib
import itertools
import os
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from shutil import copytree
from statistics import median

import click
import msgspec

from backends.executors.dummy import SimulatedExecutor
from backends.executors.padded_batch import ones
from backends.types import OutputKind
from loadtests.backend import RunningBackend, backend
from loadtests.demo import demo_models
from loadtests.generator import Outcome, Target, run_closed
from loadtests.machine import pin, processor_seconds
from loadtests.measured import BareServer, backends_of, bare_server, target_of
from loadtests.options import rounds
from loadtests.report import heading, keep, print_table
from loadtests.turns import in_turns
from loadtests.workload import sentences
from testing.system import System
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[1]
_MODEL, _ENCODER, _DIMENSIONS = "sentiment", "minilm", 384
_CONNECTIONS, _MOST_ITEMS = 32, 2048  # in flight: a backend queues up to 4,096 rows
_ANSWER_BYTES, _BARE = 330, 4096  # of the bare server, and the requests before and after a run
_GATEWAY_CORE, _BACKEND_CORE, _GENERATOR_CORE, _OTHER_CORE = range(4)
_RUNS = 2  # batches that the device runs at a time
_REPLAYS = 40  # batches that tell what the executor itself takes
_IDLE = 2.0  # seconds that tell what each process takes without work
_MOST_IDLE = 15  # times that long, until what start-up began has ended
_SETTLED = 0.9  # of the idle rate before: it no longer falls
_COLUMNS = (
    *("items a request", "an item takes", "gateway worker", "backend", "events", "Valkeys"),
    *("together", "generator", "paced executor, left out", "items/s"),
)
_AIM = 50_000  # rows a second
# The batch limits of a backend on a GPU.
_GPU_BATCHES = {
    "SLUICEGATE_BACKEND_MAX_BATCH_ROWS": "256",
    "SLUICEGATE_BACKEND_MAX_BATCH_TOKENS": "32768",
}
_ROLES = {
    "gateway": ("gateway",),
    "backend": ("backend",),
    "events": ("shipper", "billing", "request-log"),
    "valkeys": ("valkey-cache", "valkey-state"),
}


class ProcessorTime(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time for each item, in microseconds or in units of a bare request.

    `backend` is without `executor`, the work of the paced executor itself.
    """

    gateway: float
    backend: float
    executor: float
    events: float
    valkeys: float
    generator: float

    @property
    def served(self) -> float:
        """The time of all that a deployment would have, too."""
        return self.gateway + self.backend + self.events + self.valkeys

    def divided(self, by: float) -> "ProcessorTime":
        """Return it in units of `by`."""
        return ProcessorTime(
            **{name: value / by for name, value in msgspec.structs.asdict(self).items()}
        )


class PipelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """The medians for requests of `items` items. `p50` and `p99` are seconds of a request.

    `rows_per_core` is the rows a second for each core that all processes share, and
    `cores_for_aim` the cores for 50,000 rows a second.
    """

    items: int
    backends: int = 1
    connections: int
    microseconds: ProcessorTime
    units: ProcessorTime
    items_per_second: float
    p50: float
    p99: float
    rows_per_core: float
    cores_for_aim: float


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

    def processor_seconds(self, batches: float, rows: float, padded_tokens: float) -> float:
        """Return the processor time of the executor itself for batches of this mean shape."""
        executor = SimulatedExecutor(
            dimensions=_DIMENSIONS, worker_threads=_RUNS, base=self.base, token=self.token
        )
        length = max(1, round(padded_tokens / rows))
        fewer, share = divmod(rows / batches, 1)

        def each(rows: int) -> float:
            batch = ones(rows, length, OutputKind.POOLED)
            used = time.thread_time()
            for _ in range(_REPLAYS):
                executor.run(batch)
            return (time.thread_time() - used) / _REPLAYS

        return batches * ((1 - share) * each(int(fewer)) + share * each(int(fewer) + 1))


class PipelineSample(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run."""

    cost: ProcessorTime
    outcome: Outcome


class PipelineMeter:
    """Measures the processor time of a running system for missed items."""

    def __init__(
        self,
        system: System,
        device: PacedDevice,
        backends: Sequence[RunningBackend] | None = None,
    ) -> None:
        self._system = system
        self._device = device
        self._pids = {
            what: [p.pid for role in roles for p in system.processes(role)]
            for what, roles in _ROLES.items()
        }
        self._backends = backends_of(system) if backends is None else backends
        self._pids["backend"] = [each.pid for each in self._backends]
        self._target = target_of(system)
        self._idle: Mapping[str, float] = dict.fromkeys(_ROLES, 0.0)

    def pin(self) -> None:
        """Give the gateway and the backend a core each; events and Valkeys share another."""
        cores = {"gateway": _GATEWAY_CORE, "backend": _BACKEND_CORE}
        for what, pids in self._pids.items():
            pin(pids, cores.get(what, _OTHER_CORE))

    def settle(self) -> Mapping[str, float]:
        """Wait until the processor time without work no longer falls.

        Return that, in processor time a second, which `run` leaves out from now on: what a loaded
        machine takes long for would hold more of it.
        """
        self._idle = settled(self._idle_rates(_IDLE) for _ in range(_MOST_IDLE))
        return self._idle

    def run(self, texts: Sequence[str], *, items: int, connections: int) -> PipelineSample:
        """Send `texts`, `items` of them a request, and return the processor time of an item.

        Raises:
            RuntimeError: something was refused, or not computed because it was known.
        """
        bodies = _bodies(texts, items)
        batches, billed = self._batches(), self._billed()
        before, started = self._used(), time.monotonic()
        outcome, generator = _send(self._target, bodies, connections)
        serving = self._used()
        if outcome.statuses != {200: len(bodies)}:
            raise RuntimeError(f"not everything was answered: {outcome.statuses}")
        done = tuple(now - then for now, then in zip(self._batches(), batches, strict=True))
        if round(done[1]) != len(texts):
            raise RuntimeError(f"{len(texts)} items were sent, {done[1]:.0f} rows computed")
        wait_until(
            lambda: self._billed() >= billed + len(bodies),
            within=60,
            what="all is billed",
            every=0.2,
        )
        time.sleep(0.5)  # for the request log
        later, passed = self._used(), time.monotonic() - started
        executor = self._device.processor_seconds(*done)
        used = {
            what: end[what] - before[what] - self._idle[what] * seconds
            for what, end, seconds in (
                ("gateway", serving, outcome.duration),
                ("backend", serving, outcome.duration),
                ("events", later, passed),
                ("valkeys", later, passed),
            )
        }
        used["backend"] -= executor
        cost = ProcessorTime(**used, executor=executor, generator=generator)
        return PipelineSample(cost=cost.divided(len(texts) / 1e6), outcome=outcome)

    def check_use(self) -> None:
        """Make sure that every backend has computed rows.

        Raises:
            RuntimeError: one has not.
        """
        if not all(backend.counter("rows_total", _ENCODER) for backend in self._backends):
            raise RuntimeError("a backend was asked nothing")

    def _idle_rates(self, seconds: float) -> dict[str, float]:
        before = self._used()
        time.sleep(seconds)
        return {what: (used - before[what]) / seconds for what, used in self._used().items()}

    def _used(self) -> dict[str, float]:
        return {what: sum(map(processor_seconds, pids)) for what, pids in self._pids.items()}

    def _batches(self) -> tuple[float, float, float]:
        batches, rows, tokens = (
            sum(backend.counter(name, _ENCODER) for backend in self._backends)
            for name in ("batches_total", "rows_total", "padded_tokens_total")
        )
        return batches, rows, tokens

    def _billed(self) -> int:
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
    items = tuple(map(int, sizes.split(",")))
    device = PacedDevice(base=base, token=token)
    shared = backends if topology == "gpu" else 0
    texts = iter(sentences((rounds + 1) * len(items) * count, seed=3))
    with (
        _measured(device, shared) as pipeline,
        bare_server(length=_ANSWER_BYTES, core=None if shared else _GATEWAY_CORE) as bare,
    ):
        idle = {what: round(rate * 1e3, 2) for what, rate in pipeline.settle().items()}
        print(f"without work, ms of processor time a second: {idle}", file=sys.stderr)
        units = [bare_seconds(bare)]

        def run(each: int) -> tuple[PipelineSample, float]:
            own = list(itertools.islice(texts, count))
            sample = pipeline.run(own, items=each, connections=connections_for(each))
            units.append(bare_seconds(bare))
            print(f"{each} items a request: {sample.cost}", file=sys.stderr)
            return sample, (units[-2] + units[-1]) / 2 * 1e6

        runs = in_turns({each: partial(run, each) for each in items}, rounds + 1)
        pipeline.check_use()
    table = []
    for each, own in runs.items():
        samples, beside = zip(*own[1:], strict=True)  # the first round warms up
        table.append(row(each, samples, beside, backends=max(1, shared)))
    show(table, median(units) * 1e6, name=" of a GPU" if shared else "")


@contextlib.contextmanager
def _measured(device: PacedDevice, shared: int) -> Iterator[PipelineMeter]:
    """Start the system: `shared` backends on one device, or else a core for each process."""
    environment = device.environment() | (_GPU_BATCHES if shared else {})
    with demo_models() as models:
        config = Path(copytree(_ROOT / "config", models.parent / "config"))
        data = models.parent / "data"
        with (
            System(data, models=models, config=config, environment=environment) as system,
            sharing_backends(system, models, config, environment, count=max(1, shared)) as running,
        ):
            pipeline = PipelineMeter(system, device, running)
            if not shared:
                pin([os.getpid()], _GENERATOR_CORE)
                pipeline.pin()
            yield pipeline


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


def settled(windows: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """Return the first of the rates, taken one after the other, that is not below that before."""
    before = float("inf")
    rates: Mapping[str, float] = {}
    for rates in windows:
        now = sum(rates.values())
        if now >= _SETTLED * before:
            break
        before = now
    return rates


def connections_for(items: int) -> int:
    """Return the number of callers with requests of `items` items whom a backend never refuses."""
    return max(1, min(_CONNECTIONS, _MOST_ITEMS // items))


def bare_seconds(bare: BareServer) -> float:
    """Return the processor time of a request to the bare server."""
    used = processor_seconds(bare.pid)
    outcome, _ = _send(bare.target, _bodies(sentences(_BARE, seed=4), 1), _CONNECTIONS)
    return (processor_seconds(bare.pid) - used) / sum(outcome.statuses.values())


def row(
    items: int, samples: Sequence[PipelineSample], units: Sequence[float], *, backends: int = 1
) -> PipelineRow:
    """Return the median of each figure; `units` are the microseconds of a bare request by run."""
    costs = [sample.cost for sample in samples]
    middle = _median(costs)
    return PipelineRow(
        items=items,
        backends=backends,
        connections=connections_for(items),
        microseconds=middle,
        units=_median([cost.divided(unit) for cost, unit in zip(costs, units, strict=True)]),
        items_per_second=median(sample.outcome.rate for sample in samples) * items,
        p50=median(sample.outcome.percentile(0.5) for sample in samples),
        p99=median(sample.outcome.percentile(0.99) for sample in samples),
        rows_per_core=1e6 / middle.served,
        cores_for_aim=_AIM * middle.served / 1e6,
    )


def show(table: Sequence[PipelineRow], unit: float, *, name: str = "") -> None:
    """Print a table as Markdown, and keep it under `loadtests/results`."""
    title = (
        f"Pipeline{name}: misses of a model that takes no time; bare uvicorn takes {unit:.1f} us"
    )
    machine = heading(title)
    lines = []
    for line in table:
        kinds = (("µs", line.microseconds, 0), ("bare requests", line.units, 2))
        for what, cost, digits in kinds:
            figures = (
                *(cost.gateway, cost.backend, cost.events, cost.valkeys),
                *(cost.served, cost.generator, cost.executor),
            )
            cells = [f"{figure:.{digits}f}" for figure in figures]
            lines.append((line.items, what, *cells, f"{line.items_per_second:,.0f}"))
    print_table(_COLUMNS, lines)
    for line in table:
        print(
            f"\n{line.items} items a request, {line.backends} backends: a core answers "
            f"{line.rows_per_core:,.0f} rows a second; {_AIM:,} take {line.cores_for_aim:.1f} cores"
        )
    keep(title, table, {}, machine)


def _median(costs: Sequence[ProcessorTime]) -> ProcessorTime:
    return ProcessorTime(
        **{
            name: median(getattr(cost, name) for cost in costs)
            for name in ProcessorTime.__struct_fields__
        }
    )


def _bodies(texts: Sequence[str], items: int) -> list[bytes]:
    """Return requests of `items` texts each."""
    return [
        msgspec.json.encode({"model": _MODEL, "input": texts[at : at + items]})
        for at in range(0, len(texts), items)
    ]


def _send(target: Target, bodies: Sequence[bytes], connections: int) -> tuple[Outcome, float]:
    """Send every body once; return the outcome, and the processor time of this process."""
    used = time.process_time()
    outcome = run_closed(target, iter(bodies), connections=connections, duration=60)
    return outcome, time.process_time() - used
