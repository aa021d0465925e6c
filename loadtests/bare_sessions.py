"""Runs a graph without a server, to measure the highest speed that a server could reach."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tokenizers

from loadtests.models import write_padded
from loadtests.report import Turn
from sluicegate.wire.cores import usable_cores

Arrays = dict[str, np.ndarray[Any, Any]]


def bare_sessions(models: Path, **limits: int) -> dict[str, "BareSessions"]:
    """Return bare sessions over the served graph, and over the graph that computes padding."""
    served = models / "minilm" / "1"
    graphs = {
        "served": served / "model.onnx",
        "padded": write_padded(models.parent / "padded.onnx"),
    }
    return {
        f"bare session, {form} graph": BareSessions(graph, served / "tokenizer.json", **limits)
        for form, graph in graphs.items()
    }


def best_first(turns: Mapping[str, Sequence[Turn]], bare: Iterable[str]) -> dict[str, list[Turn]]:
    """Return all runs, and before them the runs of the fastest bare session: the baseline."""
    best = max(bare, key=lambda what: median(run.outcome.rate for run in turns[what]))
    return {what: list(turns[what]) for what in (best, *turns)}


class BareSessions:
    """Runs a graph without a server: a one-thread session for each core, longest batches first.

    A batch has at most `rows` texts and `tokens` tokens. `together` texts at a time are sorted by
    length.
    """

    def __init__(
        self,
        graph: Path,
        tokenizer: Path,
        *,
        rows: int,
        tokens: int = 1 << 30,
        together: int = 1 << 30,
    ) -> None:
        self._rows, self._tokens, self._together = rows, tokens, together
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415 - only after its telemetry is off

        self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._free = [
            onnxruntime.InferenceSession(
                str(graph),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["SkipLayerNormFusion"],  # slow on CPUs, and off in backends
            )
            for _ in range(usable_cores())
        ]

    def run(self, texts: Sequence[str]) -> None:
        """Tokenize and run texts, and drop the results.

        While batches run, the next texts are tokenized.
        """
        starts = range(0, len(texts), self._together)
        parts = (self.batches(texts[start : start + self._together]) for start in starts)
        self.run_batches(chain.from_iterable(parts))

    def run_batches(self, batches: Iterable[Arrays]) -> None:
        """Run batches, and drop the results."""
        with ThreadPoolExecutor(len(self._free)) as pool:
            list(pool.map(self.run_batch, batches))

    def run_batch(self, batch: Arrays) -> None:
        """Run a batch in the calling thread, and drop the results. As many threads as cores may."""
        session = self._free.pop()
        session.run(["pooled"], batch)
        self._free.append(session)

    def batches(self, texts: Sequence[str]) -> Iterator[Arrays]:
        """Yield the batches of texts."""
        encoded = self._tokenizer.encode_batch_fast(texts)
        rows = sorted((each.ids for each in encoded), key=len, reverse=True)
        while rows:
            most = max(1, min(self._rows, self._tokens // len(rows[0])))
            batch, rows = rows[:most], rows[most:]
            ids = np.zeros((len(batch), len(batch[0])), np.int32)
            mask = np.zeros_like(ids)
            for place, row in enumerate(batch):
                ids[place, : len(row)] = row
                mask[place, : len(row)] = 1
            yield {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
