"""Measures the rate of texts through a gateway or a backend. Other processes send the load."""

import multiprocessing
import resource
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from loadtests.backend import backend, call
from loadtests.generator import Outcome, Target, percentile, run_closed
from loadtests.gpu.models import chosen_form, import_classifier, texts
from loadtests.gpu.plan import (
    BATCH_TOKENS,
    FULL_BATCH,
    IN_FLIGHT,
    LARGE,
    SMALL,
    Options,
    through_gateway,
)
from loadtests.gpu.results import Measurement, Measuring, Report
from loadtests.gpu.timing import busy_share
from loadtests.measured import target_of
from sluicegate.wire.protocol import ModelInfo, ServingState
from testing.loopback import get
from testing.system import System

_CLIENTS, _IN_FLIGHT_TEXTS = 4, 4096
_QUEUED_BATCHES = 32
# The settings have the defaults of a GPU, even if the run is on a CPU.
_BATCHES = {"max_batch_rows": str(FULL_BATCH), "max_batch_tokens": str(BATCH_TOKENS)}
_ALONE = {
    "threads": "1",
    "tokenizer_threads": "4",
    "row_cache_bytes": "0",
    "max_queue_rows": str(_QUEUED_BATCHES * FULL_BATCH),
    "max_queue_tokens": str(_QUEUED_BATCHES * BATCH_TOKENS),
}


_AIMS = {SMALL: "50,000", LARGE: "16,700"}
"""Sequences a second, in requests of many texts."""


def figures(options: Options, section: str, _report: Report) -> Iterator[Measuring]:
    """Measure a backend, or a whole system whose backends are on the same devices as a user's."""
    model = LARGE if section == "gateway-large" else SMALL
    models = import_classifier(options, model)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1 if options.tiny else _CLIENTS, mp_context=context) as pool:
        measure = partial(_measure, options, model, models, pool)
        if section == "engine":
            for runs in IN_FLIGHT:
                name = f"engine, {SMALL}, 24 tokens, {runs} in flight"
                yield name, partial(_measure_backend, options, models, runs, measure)
            return
        settings = {"provider": options.provider} | _BATCHES
        if options.provider == "cpu":
            settings["threads"] = "1"
        with System(
            # A new folder each time: the `sluicegate up` of a process that died may still be ending
            # in the former folder.
            Path(mkdtemp(prefix="up-", dir=options.output)) / "up",
            models=models,
            workers=options.gateway_workers,
            environment={f"SLUICEGATE_BACKEND_{n.upper()}": each for n, each in settings.items()},
        ) as system:
            urls = [process.address or "" for process in system.processes("backend")]
            for items in (64, 1):
                yield (
                    through_gateway(model, items),
                    partial(measure, items, target_of(system), urls),
                )


def _measure_backend(
    options: Options, models: Path, runs: int, measure: Callable[..., Measurement]
) -> Measurement:
    """Measure a backend without a gateway: tokenizer, batcher and executor."""
    settings = {"provider": options.provider, "gpu_runs": str(runs)} | _BATCHES | _ALONE
    with backend(models, **settings) as running:
        found = measure(64, running.target, [running.url], running.model("bench"))
        rows, batches = (running.counter(f"{name}_total", "bench") for name in ("rows", "batches"))
    note = f"{rows / max(1, batches):.0f} rows a batch; {found.note}"
    return msgspec.structs.replace(found, note=note)


def _measure(
    options: Options,
    model: str,
    models: Path,
    pool: ProcessPoolExecutor,
    items: int,
    target: Target,
    urls: Sequence[str],
    info: ModelInfo | None = None,
) -> Measurement:
    """Let the load processes send for a warm-up, and then for the measured time.

    They send requests of `items` texts or, with `info`, calls of a backend.
    """
    clients = 1 if options.tiny else _CLIENTS
    in_flight = 32 if options.tiny else _IN_FLIGHT_TEXTS
    connections = max(1, in_flight // clients // items)
    length, vocabulary = options.batch(model, 1).length, options.shape(LARGE).vocab

    def load(seconds: float, *, seed: int) -> list[Outcome]:
        running = [
            pool.submit(
                _send, target, connections, seconds, info, items, (vocabulary, length, seed + each)
            )
            for each in range(clients)
        ]
        return [each.result() for each in running]

    load(options.seconds / 4, seed=100 + items)
    with busy_share() as busy:
        runs = load(options.seconds, seed=200 + items)
    answers = [get(f"{url}/v1/state", timeout=10).content for url in urls]
    states = [msgspec.msgpack.decode(answer, type=ServingState) for answer in answers]
    found = summary(options, runs, states, items=items, length=length)
    note = f"{found.note}; {chosen_form(models)}"
    if info is None and items > 1:
        note += f"; aim: {_AIMS[model]} a second"
    return msgspec.structs.replace(found, busy=busy(), note=note)


def _send(
    target: Target,
    connections: int,
    seconds: float,
    info: ModelInfo | None,
    items: int,
    source: tuple[int, int, int],
) -> Outcome:
    """Send requests or calls. Each load process runs this function.

    `source` is the vocabulary, the length and the seed of the texts.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))

    def bodies() -> Iterator[bytes]:
        vocabulary, length, seed = source
        every = texts(vocabulary, length=length, seed=seed)
        while True:
            given = list(islice(every, items))
            document = {"model": "bench", "input": given[0] if items == 1 else given}
            yield msgspec.json.encode(document) if info is None else call(given, info)

    while True:
        found = run_closed(target, bodies(), connections=connections, duration=seconds)
        if found.latencies:
            return found
        seconds *= 2  # on a busy machine, all connections opened too late


def summary(
    options: Options,
    runs: Sequence[Outcome],
    states: Sequence[ServingState],
    *,
    items: int,
    length: int,
) -> Measurement:
    """Return the figure that combines the results of all load processes and backends.

    The figure has passed if every request was answered, and every backend ran on the expected
    device.
    """
    right = sum(each.statuses.get(200, 0) for each in runs)
    others = sum(each.failed for each in runs)
    rate = sum(each.statuses.get(200, 0) / each.duration for each in runs) * items
    latencies = sorted(latency for each in runs for latency in each.latencies)
    elsewhere = [s.provider for s in states if options.provider not in s.provider.lower()]
    note = f"{len(states)} backends, {options.gateway_workers} workers"
    if others:
        note += f"; {others} requests were not answered with 200"
    if elsewhere:
        note += f"; a backend runs on `{elsewhere[0]}`"
    return Measurement(
        rate=rate,
        tokens_per_second=rate * length,
        waste=round(max((s.report.padding_waste_ratio for s in states), default=0.0), 3),
        p50=percentile(latencies, 0.5),
        p99=percentile(latencies, 0.99),
        passed=others == 0 and right > 0 and not elsewhere,
        note=note,
    )
