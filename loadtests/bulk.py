"""Measures a bulk job beside bare sessions that run the same batches, in turns.

Both sides tokenize, sort and pad in parts of 2,048 texts; a bulk job also reads Parquet, looks up
what is equal, keeps answers and writes Parquet. Each round is a job of its own, whose texts alone
are in memory: others would be traversed by every garbage collection.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import msgspec

from backends.bulk.runner import BulkRunner
from backends.protocol import Task
from bulk.cli import run_job
from bulk.files import OutputFolder, find_inputs, import_pyarrow
from bulk.items import key_prefix
from bulk.options import BulkOptions, encoded_parameters, make_manifest
from bulk.output import work_folder
from bulk.shared_cache import NullCache
from loadtests.bare_sessions import BareSessions, Batching
from loadtests.demo import demo_models
from loadtests.machine import resident_bytes
from loadtests.options import rounds
from loadtests.padded import write_padded
from loadtests.report import heading, print_table
from loadtests.turns import paired
from loadtests.workload import sentences

_MODEL = "minilm"
_BATCHING = Batching(rows=16, tokens=4096, together=2048)
_NO_MODEL: dict[str, Any] = {"provider": "paced", "paced_base": 0.0, "paced_token": 0.0}


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The wall time and this process's processor time of a number of texts, in seconds."""

    texts: int
    processor: float
    wall: float

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            texts=self.texts + other.texts,
            processor=self.processor + other.processor,
            wall=self.wall + other.wall,
        )

    @property
    def rate(self) -> float:
        """Texts a second."""
        return self.texts / self.wall

    @property
    def cost(self) -> float:
        """Processor time of a text."""
        return self.processor / self.texts


@click.command()
@click.option("--rows", default=30_000, help="Texts of all rounds together.")
@rounds(3)
@click.option("--bare-share", default=1.0, help="Of texts for bare sessions.")
@click.option("--without-model", is_flag=True, help="Measure all that is beside the model.")
def measure(*, rows: int, rounds: int, bare_share: float, without_model: bool) -> None:
    """Measure bare sessions over two forms of the graph, and a bulk job, on the same texts.

    The sessions run a share of each round's texts, which are in no order: half of it before the
    job and half of it after. Without a model, no side runs its sessions.
    """
    size = rows // rounds
    spent: dict[str, list[Spent]] = {}
    memory: list[int] = []
    with demo_models() as models:
        root, model = models.parent, models / _MODEL / "1"
        forms = {"served": model / "model.onnx"}
        if not without_model:
            forms["padded"] = write_padded(root / "padded.onnx")
        bare = {
            f"bare session, {form}": BareSessions(
                graph, model / "tokenizer.json", _BATCHING, without_model=without_model
            )
            for form, graph in forms.items()
        }
        settings = _NO_MODEL if without_model else {}
        with BulkRunner(models, model=_MODEL, task="embed", **settings) as runner:
            for number in range(rounds):
                own = sentences(size, seed=4 + number)
                middle = max(1, round(bare_share * size / 2))
                before = _run_bare(bare, own[:middle])
                source = write_texts(root / f"in-{number}.parquet", own)
                done = _spent(_bulk_job(runner, source, root / f"out-{number}"), size)
                after = _run_bare(bare, own[middle : 2 * middle])
                for what in bare:
                    spent.setdefault(what, []).append(before[what] + after[what])
                spent.setdefault("sluicegate bulk", []).append(done)
                memory.append(resident_bytes(os.getpid()))
                print(f"round {number + 1} of {rounds}: {done.rate:,.0f} texts/s", flush=True)
    _show(spent, size, memory)


def _run_bare(bare: dict[str, BareSessions], texts: list[str]) -> dict[str, Spent]:
    return {
        what: _spent(partial(sessions.run, texts), len(texts)) for what, sessions in bare.items()
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


def write_texts(path: Path, texts: list[str], *, group: int | None = None) -> Path:
    """Write a Parquet file with a column of texts, in row groups of `group` rows."""
    arrow, parquet = import_pyarrow(), import_pyarrow("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": texts}), path, row_group_size=group)
    return path


def _spent(run: Callable[[], None], texts: int) -> Spent:
    used, started = time.process_time(), time.perf_counter()
    run()
    wall, processor = time.perf_counter() - started, time.process_time() - used
    return Spent(texts=texts, processor=processor, wall=wall)


def _show(spent: dict[str, list[Spent]], size: int, memory: list[int]) -> None:
    heading(f"Bulk: {size:,} texts a round")
    *bare, _ = spent
    best = spent[max(bare, key=lambda what: median([each.rate for each in spent[what]]))]
    print_table(
        ("what", "texts/s", "of the bare session", "µs of processors a text", "of it"),
        [
            (
                *(what, f"{median([each.rate for each in own]):,.0f}"),
                f"{paired([each.rate for each in own], [each.rate for each in best]):.3f}",
                f"{median([each.cost for each in own]) * 1e6:,.1f}",
                f"{paired([each.cost for each in best], [each.cost for each in own]):.3f}",
            )
            for what, own in spent.items()
        ],
    )
    grown = ", ".join(f"{each / 2**20:,.0f}" for each in memory)
    print(f"\nResident MiB after each round of the bulk job: {grown}")
