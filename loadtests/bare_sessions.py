"""Runs a graph without a server, to measure the highest speed that a server could reach."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tokenizers

from wire.cores import usable_cores

Arrays = dict[str, np.ndarray[Any, Any]]


class Batching(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a batch; `together` texts at a time are sorted by length."""

    rows: int
    tokens: int = 1 << 30
    together: int = 1 << 30


class BareSessions:
    """Runs a graph without a server: a one-thread session for each core, longest batches first."""

    def __init__(self, graph: Path, tokenizer: Path, batching: Batching) -> None:
        self._batching = batching
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

        While a batch runs, the next texts are tokenized.
        """
        with ThreadPoolExecutor(len(self._free)) as pool:
            before: Iterable[None] = ()
            for start in range(0, len(texts), self._batching.together):
                own = texts[start : start + self._batching.together]
                begun = pool.map(self._run, self.batches(own))
                list(before)
                before = begun
            list(before)

    def run_batches(self, batches: Iterable[Arrays]) -> None:
        """Run batches, and drop the results."""
        with ThreadPoolExecutor(len(self._free)) as pool:
            list(pool.map(self._run, batches))

    def _run(self, batch: Arrays) -> None:
        session = self._free.pop()
        session.run(["pooled"], batch)
        self._free.append(session)

    def batches(self, texts: Sequence[str]) -> Iterator[Arrays]:
        """Yield the batches of texts."""
        encoded = self._tokenizer.encode_batch_fast(texts)
        rows = sorted((each.ids for each in encoded), key=len, reverse=True)
        while rows:
            most = max(1, min(self._batching.rows, self._batching.tokens // len(rows[0])))
            batch, rows = rows[:most], rows[most:]
            ids = np.zeros((len(batch), len(batch[0])), np.int32)
            mask = np.zeros_like(ids)
            for place, row in enumerate(batch):
                ids[place, : len(row)] = row
                mask[place, : len(row)] = 1
            yield {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
