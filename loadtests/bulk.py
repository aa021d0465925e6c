"""Compares a bulk job with sessions of ONNX Runtime that run the same batches without a job.

Job and sessions tokenize, sort and pad the texts in parts of 2,048. The bulk job also reads
Parquet, looks for equal items, keeps results and writes Parquet. Each round makes new texts and
drops the texts of the round before, because every garbage collection would traverse all texts in
memory.
"""

import itertools
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import click

from backends.bulk.runner import BulkRunner
from bulk.cli import run_job
from bulk.files import OutputFolder, find_inputs, import_pyarrow
from bulk.items import key_prefix
from bulk.options import BulkOptions, encoded_parameters, make_manifest
from bulk.output import work_folder
from bulk.shared_cache import NullCache
from loadtests.bare_sessions import BareSessions, Batching
from loadtests.generator import OK, Outcome
from loadtests.machine import resident_bytes
from loadtests.measured import demo_models, metered
from loadtests.options import rounds
from loadtests.padded import write_padded
from loadtests.report import show, table_of
from loadtests.turns import in_turns
from loadtests.workload import sentences
from wire.protocol import Task

_MODEL = "minilm"
_BATCHING = Batching(rows=16, tokens=4096, together=2048)
_JOB = "sluicegate bulk"


@click.command()
@click.option("--rows", default=30_000, help="Number of texts in all rounds together.")
@rounds(3)
@click.option("--bare-share", default=1.0, help="Share of the texts that bare sessions run.")
def measure(*, rows: int, rounds: int, bare_share: float) -> None:
    """Measure bare sessions with two forms of the graph, and a bulk job, on the same texts.

    The bare sessions run only the fraction `bare_share` of each round's texts, which are in random
    order.
    """
    size = rows // rounds
    own: list[str] = []
    memory: list[int] = []
    turns_done = itertools.count()
    with (
        demo_models() as models,
        BulkRunner(models, model=_MODEL, task="embed") as runner,
    ):
        source = models.parent / "in.parquet"
        bare = _bare_sessions(models)

        def prepare() -> None:
            """Write new texts before each round."""
            turn = next(turns_done)
            if turn % (1 + len(bare)) == 0:
                own[:] = sentences(size, seed=4 + turn)
                _write_texts(source, own)

        def job() -> Outcome:
            found = _timed(_bulk_job(runner, source, models.parent / f"out-{len(memory)}"), size)
            memory.append(resident_bytes(os.getpid()) >> 20)
            return found

        def alone(sessions: BareSessions) -> Outcome:
            texts = own[: max(1, round(bare_share * size))]
            return _timed(lambda: sessions.run(texts), len(texts))

        variants = {_JOB: job} | {what: partial(alone, each) for what, each in bare.items()}
        here = [os.getpid()]
        prepare()
        turns = in_turns(
            {what: metered(run, server=here) for what, run in variants.items()},
            rounds,
            rest=prepare,
        )
    best = max(bare, key=lambda what: median(run.outcome.rate for run in turns[what]))
    show(
        f"Bulk: {size:,} texts a round",
        table_of({best: turns[best]} | turns),
        f"Resident MiB after each round of the bulk job: {memory}.",
    )


def _bare_sessions(models: Path) -> dict[str, BareSessions]:
    """Return bare sessions over the served graph, and over the graph that computes padding."""
    folder = models / _MODEL / "1"
    graphs = {
        "served": folder / "model.onnx",
        "padded": write_padded(models.parent / "padded.onnx"),
    }
    return {
        f"bare session, {form} graph": BareSessions(graph, folder / "tokenizer.json", _BATCHING)
        for form, graph in graphs.items()
    }


def _bulk_job(runner: BulkRunner, source: Path, target: Path) -> Callable[[], None]:
    options = BulkOptions(model=_MODEL, task=Task.EMBED, columns=("text",))
    parameters = encoded_parameters(runner.parameters)
    prefix = key_prefix(runner.info, options, parameters, secret=b"", scope="bulk", epoch="")
    manifest = make_manifest(options, find_inputs([str(source)]), runner.info, runner.provider)

    def run() -> None:
        folder = OutputFolder(str(target))
        with work_folder(None, folder, manifest) as work:
            run_job(runner, manifest, prefix, NullCache(), folder, work=work, max_errors=None)

    return run


def _write_texts(path: Path, texts: list[str]) -> None:
    """Write a Parquet file with a column of texts."""
    arrow, parquet = import_pyarrow(), import_pyarrow("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": texts}), path)


def _timed(run: Callable[[], None], texts: int) -> Outcome:
    started = time.perf_counter()
    run()
    return Outcome(duration=time.perf_counter() - started, statuses={OK: texts}, latencies=[])
