"""Compares a bulk job with sessions of ONNX Runtime that run the same batches without a job.

Job and sessions tokenize, sort and pad the texts in parts of 2,048. The bulk job also reads
Parquet, looks for equal items, keeps results and writes Parquet. Each round makes new texts and
drops the texts of the round before, because every garbage collection would traverse all texts in
memory.
"""

import os
import time
from functools import partial
from itertools import count
from pathlib import Path

import click

from backends.bulk.runner import BulkRunner
from bulk.cli import run_job
from bulk.files import OutputFolder, find_inputs, import_pyarrow
from bulk.items import key_prefix
from bulk.options import BulkOptions, encoded_parameters, make_manifest
from bulk.output import work_folder
from bulk.shared_cache import NullCache
from loadtests.bare_sessions import BareSessions, bare_sessions, best_first
from loadtests.generator import OK, Outcome
from loadtests.machine import resident_bytes
from loadtests.measured import demo_models, metered
from loadtests.options import rounds
from loadtests.report import Turn, show, table_of
from loadtests.turns import in_turns
from loadtests.workload import sentences
from wire.protocol import Task

_MODEL = "minilm"


@click.command()
@click.option("--rows", default=30_000, help="Number of texts in all rounds together.")
@rounds(3)
@click.option("--bare-share", default=1.0, help="Share of the texts that bare sessions run.")
def measure(*, rows: int, rounds: int, bare_share: float) -> None:
    """Compare a bulk job with bare sessions over two forms of the graph, on the same texts.

    The bare sessions run only the fraction `bare_share` of each round's texts, which are in random
    order.
    """
    size = rows // rounds
    texts: list[str] = []
    memory: list[int] = []
    numbers = count()
    with demo_models() as models, BulkRunner(models, model=_MODEL, task="embed") as runner:
        bare = bare_sessions(models, rows=16, tokens=4096, together=2048)
        here = [os.getpid()]

        def job() -> Turn:
            """Write new texts, and measure a job over them."""
            number = next(numbers)
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
    parameters = encoded_parameters(runner.parameters)
    prefix = key_prefix(runner.info, options, parameters, secret=b"", scope="bulk", epoch="")
    manifest = make_manifest(options, find_inputs([str(source)]), runner.info, runner.provider)
    started = time.perf_counter()
    folder = OutputFolder(str(target))
    with work_folder(None, folder, manifest) as work:
        run_job(runner, manifest, prefix, NullCache(), folder, work=work, max_errors=None)
    return _outcome(started, size)


def _outcome(started: float, texts: int) -> Outcome:
    return Outcome(duration=time.perf_counter() - started, statuses={OK: texts}, latencies=[])
