"""Compares misses and bulk jobs with bare sessions of ONNX Runtime, which run without a server."""

import os
import time
from functools import partial
from itertools import count as numbers
from pathlib import Path

import click

from loadtests.backend import calls
from loadtests.bare_sessions import BareSessions, bare_sessions, best_first
from loadtests.generator import CALLERS, OK, Outcome, run_closed
from loadtests.machine import resident_bytes
from loadtests.measured import (
    backends_of,
    classify_bodies,
    demo_models,
    memory_of,
    metered,
    target_of,
)
from loadtests.options import rounds
from loadtests.report import Turn, show, table_of
from loadtests.turns import in_turns
from loadtests.workload import sentences
from sluicegate.backends.bulk.runner import BulkRunner
from sluicegate.bulk.cli import run_job
from sluicegate.bulk.files import OutputFolder, find_inputs, import_pyarrow
from sluicegate.bulk.items import key_prefix
from sluicegate.bulk.options import BulkOptions, make_manifest
from sluicegate.bulk.output import work_folder
from sluicegate.bulk.shared_cache import NullCache
from sluicegate.wire.protocol import Task
from testing.system import TWO_REGIONS, System

_MODEL = "minilm"


@click.command("miss")
@click.option("--count", default=3000, help="Number of sentences in each run.")
@rounds(3)
@click.option("--two-backends", is_flag=True, help="Serve two regions instead of one.")
def measure_misses(*, count: int, rounds: int, two_backends: bool) -> None:
    """Compare a bare session, a backend over HTTP and the gateway, one after another in each round.

    One bare session runs the served graph, and a second one runs the graph that computes padding.
    The faster of the two is the baseline. The gateway has a backend with all cores or, with
    --two-backends, one backend in each of two regions.
    """
    texts = iter(sentences(count * rounds * 2, seed=2))
    arguments = TWO_REGIONS if two_backends else ()
    with (
        demo_models() as models,
        System(models.parent / "data", models=models, arguments=arguments) as system,
    ):
        running, *_ = backends = backends_of(system)
        known: list[str] = []

        def fresh() -> list[str]:
            known[:] = [next(texts) for _ in range(count)]
            return known

        def backend() -> Outcome:
            bodies = calls(fresh(), running.model("sentiment"))
            return run_closed(running.target, bodies)

        def gateway() -> Outcome:
            bodies = iter(classify_bodies(fresh()))
            return run_closed(target_of(system), bodies)

        workers = [each.pid for each in system.processes("gateway")]
        variants = {
            "a backend over HTTP": metered(backend, server=[running.pid]),
            "through the gateway": metered(
                gateway, server=workers, others=[each.pid for each in backends]
            ),
        }
        bare = {
            what: metered(partial(_run_alone, each, known))
            for what, each in bare_sessions(models, rows=8).items()
        }
        turns = in_turns(variants | bare, rounds)
        memory = memory_of(system)
    title = f"Misses on all cores: {CALLERS} connections"
    show(title, table_of(best_first(turns, bare)), memory)


def _run_alone(sessions: BareSessions, texts: list[str]) -> Outcome:
    """Run batches that are tokenized before the measurement."""
    batches = list(sessions.batches(texts))
    started = time.perf_counter()
    sessions.run_batches(batches)
    return _outcome(started, len(texts))


@click.command("bulk")
@click.option("--rows", default=30_000, help="Number of texts in all rounds together.")
@rounds(3)
@click.option("--bare-share", default=1.0, help="Share of the texts that bare sessions run.")
def measure_bulk(*, rows: int, rounds: int, bare_share: float) -> None:
    """Compare a bulk job with bare sessions over two forms of the graph, on the same texts.

    Job and sessions tokenize, sort and pad the texts in parts of 2,048. The bulk job also reads
    Parquet, looks for equal items, keeps results and writes Parquet. The bare sessions run only the
    fraction `bare_share` of each round's texts, which are in random order. Each round makes new
    texts and drops the texts of the round before, because every garbage collection would traverse
    all texts in memory.
    """
    size = rows // rounds
    texts: list[str] = []
    memory: list[int] = []
    turn_numbers = numbers()
    with demo_models() as models, BulkRunner(models, model=_MODEL, task="embed") as runner:
        bare = bare_sessions(models, rows=16, tokens=4096, together=2048)
        here = [os.getpid()]

        def job() -> Turn:
            """Write new texts, and measure a job over them."""
            number = next(turn_numbers)
            texts[:] = sentences(size, seed=4 + number)
            source = models.parent / "in.parquet"
            arrow, parquet = import_pyarrow(), import_pyarrow("pyarrow.parquet")
            parquet.write_table(arrow.table({"text": texts}), source)
            target = models.parent / f"out-{number}"
            turn = metered(partial(_bulk_job, runner, source, target, size), server=here)()
            memory.append(resident_bytes(os.getpid()) >> 20)
            return turn

        def alone(sessions: BareSessions) -> Outcome:
            own = texts[: max(1, round(bare_share * size))]
            started = time.perf_counter()
            sessions.run(own)
            return _outcome(started, len(own))

        turns = in_turns(
            {"sluicegate bulk": job}
            | {what: metered(partial(alone, each), server=here) for what, each in bare.items()},
            rounds,
        )
    show(
        f"Bulk: {size:,} texts a round",
        table_of(best_first(turns, bare)),
        f"Resident MiB after each round of the bulk job: {memory}.",
    )


def _bulk_job(runner: BulkRunner, source: Path, target: Path, size: int) -> Outcome:
    options = BulkOptions(model=_MODEL, task=Task.EMBED, columns=("text",))
    manifest = make_manifest(options, find_inputs([str(source)]), runner.info, runner.provider)
    started = time.perf_counter()
    folder = OutputFolder(str(target))
    with work_folder(None, folder, manifest) as work:
        prefix = key_prefix(runner)
        run_job(runner, manifest, prefix, NullCache(), folder, work=work, max_errors=None)
    return _outcome(started, size)


def _outcome(started: float, texts: int) -> Outcome:
    return Outcome(duration=time.perf_counter() - started, statuses={OK: texts}, latencies=[])
