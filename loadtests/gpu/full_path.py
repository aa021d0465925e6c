"""Measures texts through the gateway: load processes, and all that `sluicegate up` starts."""

import asyncio
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from backends.protocol import ServingState
from loadtests.generator import Target, closed_loop
from loadtests.gpu.device import UtilizationSampler
from loadtests.gpu.models import chosen_form, import_classifier, texts
from loadtests.gpu.plan import (
    BATCH_TOKENS,
    BUDGETS,
    CLIENTS,
    FULL_BATCH,
    IN_FLIGHT_TEXTS,
    Figure,
    Options,
    Section,
)
from loadtests.gpu.results import Journal, Measurement, SectionState
from testing.loopback import get
from testing.system import System


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a load process; each request has `items` texts."""

    port: int
    key: str
    connections: int
    seconds: float
    items: int
    seed: int
    length: int
    tiny: bool


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a load process; latencies in seconds, at most a few thousand."""

    requests: int
    duration: float
    statuses: dict[int, int]
    latencies: list[float]


def main() -> None:
    """Run a load process: read a `LoadSpec` from standard input, print a `LoadResult`."""
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadSpec)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    target = Target(
        host="127.0.0.1",
        port=orders.port,
        path="/v1/classify",
        headers=(("authorization", f"Bearer {orders.key}"),),
    )
    outcome = asyncio.run(
        closed_loop(
            target, _bodies(orders), connections=orders.connections, duration=orders.seconds
        )
    )
    step = max(1, len(outcome.latencies) // 2000)
    answer = LoadResult(
        requests=len(outcome.latencies),
        duration=outcome.duration,
        statuses=outcome.statuses,
        latencies=outcome.latencies[::step],
    )
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def _bodies(orders: LoadSpec) -> Iterator[bytes]:
    options = Options(output=Path(), work=Path(), tiny=orders.tiny)
    source = texts(options, length=orders.length, seed=orders.seed)
    while True:
        given = [next(source) for _ in range(orders.items)]
        document = {"model": "bench", "input": given[0] if orders.items == 1 else given}
        yield msgspec.json.encode(document)


_ROOT = Path(__file__).parents[2]
_WARM_SECONDS = 1.0


def small(options: Options) -> SectionState:
    """Measure the small model."""
    return _measure(options, "gateway-small")


def large(options: Options) -> SectionState:
    """Measure the large model."""
    return _measure(options, "gateway-large")


def _measure(options: Options, section: Section) -> SectionState:
    journal = Journal(options)
    figures = journal.missing(section)
    if not figures:
        return SectionState(status="done")
    preset = figures[0].preset
    models = import_classifier(options, preset)
    # The settings are the defaults on a GPU, whatever the machine. How many backends run, and on
    # which device each, is what `up` chooses.
    environment = {
        "SLUICEGATE_BACKEND_PROVIDER": options.provider,
        "SLUICEGATE_BACKEND_MAX_BATCH_ROWS": str(FULL_BATCH),
        "SLUICEGATE_BACKEND_MAX_BATCH_TOKENS": str(BATCH_TOKENS),
    }
    if options.provider == "cpu":
        environment["SLUICEGATE_BACKEND_THREADS"] = "1"
    system = System(
        # Another name each time: a process before this one may have died with `up` still ending.
        Path(mkdtemp(prefix=f"up-{preset}-", dir=options.work)) / "up",
        models=models,
        workers=options.gateway_workers(),
        environment=environment,
    )

    def measure(figure: Figure) -> Measurement:
        seed = 200 + 100 * figures.index(figure)
        with UtilizationSampler() as busy:
            answers = _load(options, system, figure, seed=seed, seconds=options.seconds)
        found = summary(options, figure, answers, _states(system))
        note = f"{found.note}; {chosen_form(models)}"
        return msgspec.structs.replace(found, busy=busy.share, note=note)

    # A GPU compares the forms of a model at its first start.
    system.start(within=BUDGETS[section])
    try:
        _load(options, system, figures[0], seed=100, seconds=min(_WARM_SECONDS, options.seconds))
        return journal.measure(section, measure)
    finally:
        system.stop()


def _load(
    options: Options, system: System, figure: Figure, *, seed: int, seconds: float
) -> list[LoadResult]:
    """Run the load processes side by side and return what each saw."""
    count, in_flight = (1, 32) if options.tiny else (CLIENTS, IN_FLIGHT_TEXTS)
    command = [sys.executable, "-m", "loadtests.gpu.full_path"]
    children = []
    for number in range(count):
        child = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        orders = LoadSpec(
            port=system.port,
            key=system.key,
            connections=max(1, in_flight // count // figure.items),
            seconds=seconds,
            items=figure.items,
            seed=seed + number,
            length=options.batch(figure).length,
            tiny=options.tiny,
        )
        if child.stdin is not None:
            child.stdin.write(msgspec.json.encode(orders))
            child.stdin.close()
        children.append(child)
    answers = []
    for child in children:
        with child:
            answer = child.stdout.read() if child.stdout is not None else b""
        answers.append(msgspec.json.decode(answer, type=LoadResult))
    return answers


def summary(
    options: Options, figure: Figure, answers: list[LoadResult], states: list[ServingState]
) -> Measurement:
    """Return the figure that load processes and backends add up to.

    It has passed if every request was answered, and every backend ran on the device.
    """
    right = sum(answer.statuses.get(200, 0) for answer in answers)
    others = sum(answer.requests for answer in answers) - right
    rate = sum(a.statuses.get(200, 0) / a.duration for a in answers) * figure.items
    latencies = sorted(value for answer in answers for value in answer.latencies) or [0.0]
    elsewhere = [s.provider for s in states if options.provider not in s.provider.lower()]
    note = f"{len(states)} backends, {options.gateway_workers()} workers"
    if others:
        note += f"; {others} requests were not answered with 200"
    if elsewhere:
        note += f"; a backend runs on `{elsewhere[0]}`"
    return Measurement(
        what=figure.name,
        rate=rate,
        tokens_per_second=rate * options.batch(figure).length,
        waste=round(max((s.report.padding_waste_ratio for s in states), default=0.0), 3),
        p50=latencies[len(latencies) // 2],
        p99=latencies[len(latencies) * 99 // 100],
        passed=others == 0 and right > 0 and not elsewhere,
        note=note,
    )


def _states(system: System) -> list[ServingState]:
    answers = (
        get(f"{process.address}/v1/state", timeout=10) for process in system.processes("backend")
    )
    return [msgspec.msgpack.decode(answer.content, type=ServingState) for answer in answers]


if __name__ == "__main__":
    main()
