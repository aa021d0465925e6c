"""Measures a bulk job beside bare sessions that run the same batches, in turns.

Both sides tokenize, sort and pad in parts of 2,048 texts; a bulk job also reads Parquet, looks up
what is equal, keeps answers and writes Parquet. Each round is a job of its own, whose texts alone
are in memory: others would be traversed by every garbage collection.
"""

import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import msgspec
import numpy as np
import tokenizers

from backends.bulk.runner import BulkRunner
from backends.cores import usable_cores
from backends.model_tools.demo.build import build_demo_models
from backends.protocol import Task
from bulk.cli import run_job
from bulk.items import key_prefix
from bulk.options import BulkOptions, encoded_parameters, make_manifest
from bulk.output import work_folder
from bulk.places import OutputFolder, find_inputs, import_pyarrow
from bulk.shared_cache import NullCache
from loadtests.machine import this_machine
from loadtests.options import rounds
from loadtests.padded import write_padded
from loadtests.workload import sentences

_MODEL, _ROWS_TOGETHER, _BATCH, _BATCH_TOKENS = "minilm", 2048, 16, 4096
_NO_MODEL: dict[str, Any] = {"provider": "paced", "paced_base": 0.0, "paced_token": 0.0}


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what texts took, and the memory afterwards.

    `processor` is of this process, `idle` and `stolen` of all cores; the rest of their time went to
    other processes and to the kernel's own threads.
    """

    texts: int
    processor: float
    wall: float
    idle: float
    stolen: float
    resident_mib: float

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            texts=self.texts + other.texts,
            processor=self.processor + other.processor,
            wall=self.wall + other.wall,
            idle=self.idle + other.idle,
            stolen=self.stolen + other.stolen,
            resident_mib=other.resident_mib,
        )

    @property
    def rate(self) -> float:
        """Texts a second."""
        return self.texts / self.wall

    @property
    def cost(self) -> float:
        """Seconds of processors a text."""
        return self.processor / self.texts

    def share(self, seconds: float) -> float:
        """Return what seconds are of the time of all cores."""
        return seconds / (self.wall * (os.cpu_count() or 1))

    @property
    def others(self) -> float:
        """Return the seconds of cores that others had."""
        cores = self.wall * (os.cpu_count() or 1)
        return max(0.0, cores - self.processor - self.idle - self.stolen)


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
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build_demo_models(root / "models", print)
        model = root / "models" / _MODEL / "1"
        forms = {"served": model / "model.onnx"}
        if not without_model:
            forms["padded"] = write_padded(root / "padded.onnx")
        bare = {
            f"bare session, {form}": BareSessions(
                graph, model / "tokenizer.json", without_model=without_model
            )
            for form, graph in forms.items()
        }
        settings = _NO_MODEL if without_model else {}
        with BulkRunner(root / "models", model=_MODEL, task="embed", **settings) as runner:
            for number in range(rounds):
                own = sentences(size, seed=4 + number)
                middle = max(1, round(bare_share * size / 2))
                before = _run_bare(bare, own[:middle])
                source = _write_input(root / f"in-{number}.parquet", own)
                done = _spent(_bulk_job(runner, source, root / f"out-{number}"), size)
                after = _run_bare(bare, own[middle : 2 * middle])
                for what in bare:
                    spent.setdefault(what, []).append(before[what] + after[what])
                spent.setdefault("sluicegate bulk", []).append(done)
                print(f"round {number + 1} of {rounds}: {done.rate:,.0f} texts/s", flush=True)
    _show(spent, size)


def _run_bare(bare: dict[str, "BareSessions"], texts: list[str]) -> dict[str, Spent]:
    return {
        what: _spent(partial(sessions.run, texts), len(texts)) for what, sessions in bare.items()
    }


class BareSessions:
    """Runs a graph alone: a one-thread session for each core, batches longest first."""

    def __init__(self, graph: Path, tokenizer: Path, *, without_model: bool = False) -> None:
        self._runs_model = not without_model
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415 - only after its telemetry is off

        self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._sessions = [
            onnxruntime.InferenceSession(
                str(graph),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["SkipLayerNormFusion"],  # as the backend: slower on a CPU
            )
            for _ in range(usable_cores())
        ]

    def run(self, texts: list[str]) -> None:
        """Tokenize and run texts; nothing is kept of what comes out."""
        free = list(self._sessions)

        def run(batch: dict[str, np.ndarray[Any, Any]]) -> None:
            session = free.pop()
            if self._runs_model:
                session.run(["pooled"], batch)
            free.append(session)

        with ThreadPoolExecutor(len(self._sessions)) as pool:
            before: list[Any] = []
            for start in range(0, len(texts), _ROWS_TOGETHER):
                begun = [pool.submit(run, batch) for batch in self._batches(texts, start)]
                for future in before:
                    future.result()
                before = begun
            for future in before:
                future.result()

    def _batches(self, texts: list[str], start: int) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        encoded = self._tokenizer.encode_batch_fast(texts[start : start + _ROWS_TOGETHER])
        rows = sorted((each.ids for each in encoded), key=len, reverse=True)
        while rows:
            most = min(_BATCH, _BATCH_TOKENS // len(rows[0]))
            batch, rows = rows[:most], rows[most:]
            ids = np.zeros((len(batch), len(batch[0])), np.int32)
            mask = np.zeros_like(ids)
            for place, row in enumerate(batch):
                ids[place, : len(row)] = row
                mask[place, : len(row)] = 1
            yield {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


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


def _write_input(path: Path, texts: list[str]) -> Path:
    arrow, parquet = import_pyarrow(), import_pyarrow("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": texts}), path)
    return path


def _spent(run: Callable[[], None], texts: int) -> Spent:
    cores, before = _core_times(), resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    run()
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    idle, stolen = (now - then for now, then in zip(_core_times(), cores, strict=True))
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return Spent(
        texts=texts,
        processor=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        wall=wall,
        idle=idle,
        stolen=stolen,
        resident_mib=pages * resource.getpagesize() / 2**20,
    )


def _core_times() -> tuple[float, float]:
    """Return the seconds that cores were idle, also for a disk, and that a hypervisor had them."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[4]) + int(fields[5])) / ticks, int(fields[8]) / ticks


def _show(spent: dict[str, list[Spent]], size: int) -> None:
    machine = this_machine()
    print(f"\n## Bulk: {size:,} texts a round, {machine.headline}\n")
    print(
        "| what | texts/s | of the bare session | µs of processors a text | of it"
        " | cores idle | had by others | stolen | MiB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    *bare, bulk = spent
    best = spent[max(bare, key=lambda what: median([each.rate for each in spent[what]]))]
    for what in (*bare, bulk):
        own = spent[what]
        rate = median([each.rate / b.rate for each, b in zip(own, best, strict=True)])
        cost = median([b.cost / each.cost for each, b in zip(own, best, strict=True)])
        total = own[0]
        for each in own[1:]:
            total += each
        shares = [total.share(each) for each in (total.idle, total.others, total.stolen)]
        print(
            f"| {what} | {median([each.rate for each in own]):,.0f} | {rate:.3f}"
            f" | {median([each.cost for each in own]) * 1e6:,.1f} | {cost:.3f}"
            f" | {' | '.join(f'{share:.1%}' for share in shares)} | {own[-1].resident_mib:,.0f} |"
        )
    memory = ", ".join(f"{each.resident_mib:,.0f}" for each in spent[bulk])
    print(f"\nResident MiB after each round of the bulk job: {memory}")
