"""Measures texts through the gateway: load processes, and all that `sluicegate up` starts."""

import asyncio
import multiprocessing
import resource
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from backends.protocol import ServingState
from loadtests.generator import Outcome, Target, closed_loop, percentile
from loadtests.gpu.models import chosen_form, import_classifier, texts
from loadtests.gpu.plan import (
    BATCH_TOKENS,
    FULL_BATCH,
    IN_FLIGHT_TEXTS,
    LARGE,
    Figure,
    Options,
)
from loadtests.gpu.results import Journal, Measurement, SectionState
from loadtests.gpu.timing import busy_share
from loadtests.measured import target_of
from testing.loopback import get
from testing.system import System

_CLIENTS = 4
_WARM_SECONDS = 1.0


def run(options: Options, section: str) -> SectionState:
    """Measure the model of a section through the gateway."""
    journal = Journal(options.output)
    figures = journal.missing(section)
    if not figures:
        return SectionState(status="done")
    model = figures[0].model
    models = import_classifier(options, model)
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
        Path(mkdtemp(prefix=f"up-{model}-", dir=options.work)) / "up",
        models=models,
        workers=options.gateway_workers,
        environment=environment,
    )
    clients = 1 if options.tiny else _CLIENTS
    with ProcessPoolExecutor(clients, mp_context=multiprocessing.get_context("spawn")) as pool:

        def load(figure: Figure, *, seed: int, seconds: float) -> list[Outcome]:
            in_flight = 32 if options.tiny else IN_FLIGHT_TEXTS
            connections = max(1, in_flight // clients // figure.items)
            target = target_of(system)
            running = [
                pool.submit(send, options, figure, target, connections, seed + number, seconds)
                for number in range(clients)
            ]
            return [each.result() for each in running]

        def measure(figure: Figure) -> Measurement:
            seed = 200 + 100 * figures.index(figure)
            with busy_share() as busy:
                found = summary(
                    options,
                    figure,
                    load(figure, seed=seed, seconds=options.seconds),
                    _states(system),
                )
            note = f"{found.note}; {chosen_form(models)}"
            return msgspec.structs.replace(found, busy=busy.share, note=note)

        # A GPU compares the forms of a model at its first start.
        system.start(within=options.budget(section))
        try:
            load(figures[0], seed=100, seconds=min(_WARM_SECONDS, options.seconds))
            return journal.measure(section, measure)
        finally:
            system.stop()


def send(
    options: Options,
    figure: Figure,
    target: Target,
    connections: int,
    seed: int,
    seconds: float,
) -> Outcome:
    """Send the requests of a figure for some seconds; this is the work of a load process."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    length = options.batch(figure).length

    def bodies() -> Iterator[bytes]:
        source = texts(options.shape(LARGE).vocab, length=length, seed=seed)
        while True:
            given = [next(source) for _ in range(figure.items)]
            document = {"model": "bench", "input": given[0] if figure.items == 1 else given}
            yield msgspec.json.encode(document)

    return asyncio.run(closed_loop(target, bodies(), connections=connections, duration=seconds))


def summary(
    options: Options, figure: Figure, runs: Sequence[Outcome], states: Sequence[ServingState]
) -> Measurement:
    """Return the figure that load processes and backends add up to.

    It has passed if every request was answered, and every backend ran on the device.
    """
    right = sum(each.statuses.get(200, 0) for each in runs)
    others = sum(sum(each.statuses.values()) for each in runs) - right
    rate = sum(each.statuses.get(200, 0) / each.duration for each in runs) * figure.items
    latencies = sorted(latency for each in runs for latency in each.latencies)
    elsewhere = [s.provider for s in states if options.provider not in s.provider.lower()]
    note = f"{len(states)} backends, {options.gateway_workers} workers"
    if others:
        note += f"; {others} requests were not answered with 200"
    if elsewhere:
        note += f"; a backend runs on `{elsewhere[0]}`"
    return Measurement(
        rate=rate,
        tokens_per_second=rate * options.batch(figure).length,
        waste=round(max((s.report.padding_waste_ratio for s in states), default=0.0), 3),
        p50=percentile(latencies, 0.5),
        p99=percentile(latencies, 0.99),
        passed=others == 0 and right > 0 and not elsewhere,
        note=note,
    )


def _states(system: System) -> list[ServingState]:
    answers = (
        get(f"{process.address}/v1/state", timeout=10) for process in system.processes("backend")
    )
    return [msgspec.msgpack.decode(answer.content, type=ServingState) for answer in answers]
