"""Measures a bulk job beside bare sessions that run the same batches, in turns.

Both sides tokenize, sort and pad in parts of 2,048 texts; a bulk job also reads Parquet, looks up
what is equal, keeps answers and writes Parquet.
"""

import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import tokenizers

from backends.bulk.runner import BulkRunner
from backends.model_tools.demo.build import build_demo_models
from backends.protocol import Task
from bulk.cli import run_job
from bulk.items import key_prefix
from bulk.options import BulkOptions, encoded_parameters, make_manifest
from bulk.output import work_folder
from bulk.places import OutputFolder, find_inputs, import_pyarrow
from bulk.shared_cache import NullCache
from loadtests.machine import this_machine
from loadtests.padded import write_padded
from loadtests.workload import sentences

_MODEL, _ROWS_TOGETHER, _BATCH, _BATCH_TOKENS = "minilm", 2048, 16, 4096


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what a text took: seconds of processors and of the clock, and the memory afterwards."""

    processor: float
    wall: float
    resident_mib: float


def measure(*, rows: int, rounds: int, bare_share: float) -> None:
    """Measure bare sessions over two forms of the graph, and a bulk job, on the same texts.

    The sessions run a share of each round's texts, which are in no order.
    """
    texts = sentences(rows, seed=4)
    size = rows // rounds
    spent: dict[str, list[Spent]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build_demo_models(root / "models", print)
        model = root / "models" / _MODEL / "1"
        forms = {"served": model / "model.onnx", "padded": write_padded(root / "padded.onnx")}
        bare = {
            f"bare session, {form}": BareSessions(graph, model / "tokenizer.json")
            for form, graph in forms.items()
        }
        with BulkRunner(root / "models", model=_MODEL, task="embed") as runner:
            for number in range(rounds):
                own = texts[number * size :][:size]
                part = own[: max(1, round(bare_share * size))]
                for what, sessions in bare.items():
                    spent.setdefault(what, []).append(
                        _spent(lambda s=sessions, t=part: s.run(t), len(part))  # type: ignore[misc]
                    )
                source = _write_input(root / f"in-{number}.parquet", own)
                run = _bulk_job(runner, source, root / f"out-{number}")
                done = _spent(run, size)
                spent.setdefault("sluicegate bulk", []).append(done)
                print(f"round {number + 1} of {rounds}: {1 / done.wall:,.0f} texts/s", flush=True)
    _show(spent, size)


class BareSessions:
    """Runs a graph alone: a one-thread session for each core, batches longest first."""

    def __init__(self, graph: Path, tokenizer: Path) -> None:
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
            for _ in range(os.cpu_count() or 1)
        ]

    def run(self, texts: list[str]) -> None:
        """Tokenize and run texts; nothing is kept of what comes out."""
        free = list(self._sessions)

        def run(batch: dict[str, np.ndarray[Any, Any]]) -> None:
            session = free.pop()
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
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    run()
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return Spent(
        processor=(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / texts,
        wall=wall / texts,
        resident_mib=pages * resource.getpagesize() / 2**20,
    )


def _show(spent: dict[str, list[Spent]], size: int) -> None:
    machine = this_machine()
    print(f"\n## Bulk: {size:,} texts a round, {machine.cpu}, {machine.cores} cores\n")
    print("| what | texts/s | of the bare session | µs of processors a text | of it | MiB |")
    print("|---|---|---|---|---|---|")
    *bare, bulk = spent
    quickest = min(bare, key=lambda what: median(each.wall for each in spent[what]))
    for what in (*bare, bulk):
        wall = [b.wall / each.wall for each, b in zip(spent[what], spent[quickest], strict=True)]
        processor = [
            b.processor / each.processor
            for each, b in zip(spent[what], spent[quickest], strict=True)
        ]
        rate = 1 / median(each.wall for each in spent[what])
        cost = median(each.processor for each in spent[what]) * 1e6
        print(
            f"| {what} | {rate:,.0f} | {median(wall):.3f} | {cost:,.0f} | {median(processor):.3f}"
            f" | {spent[what][-1].resident_mib:,.0f} |"
        )
    memory = ", ".join(f"{each.resident_mib:,.0f}" for each in spent[bulk])
    print(f"\nResident MiB after each round of the bulk job: {memory}")
