"""Runs a demo encoder on training texts, with the tokens and the graph that a backend uses."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.padded_batch import pad
from sluicegate.backends.types import OutputKind

MAX_TOKENS = 256
_BATCH_ROWS = 8

Matrix = NDArray[np.float32]


class Encoder:
    """An encoder in the repository of the demo models."""

    def __init__(self, models: Path, name: str = "minilm") -> None:
        folder = models / name / "1"
        manifest = yaml.safe_load((folder / "model.yaml").read_text(encoding="utf-8"))
        source = GraphSource(
            path=folder / "model.onnx",
            outputs={OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"},
            dimensions=manifest["dimensions"],
        )
        self._executor = OnnxExecutor(source, worker_threads=1)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return the pooled vector of each text, scaled to length 1."""
        pooled: Matrix = np.stack(
            self._run(self._tokenizer.encode_batch(list(texts)), OutputKind.POOLED)
        )
        lengths: Matrix = np.linalg.norm(pooled, axis=1, keepdims=True)
        return pooled / lengths

    def states(self, texts: Sequence[str]) -> list[tuple[Encoding, Matrix]]:
        """Return the tokens of each text, and one hidden state for each token."""
        encodings = self._tokenizer.encode_batch(list(texts))
        states = self._run(encodings, OutputKind.TOKENS)
        return [
            (encoding, state[: len(encoding.ids)])
            for encoding, state in zip(encodings, states, strict=True)
        ]

    def _run(self, encodings: list[Encoding], output: OutputKind) -> list[Matrix]:
        results: dict[int, Matrix] = {}
        order = sorted(range(len(encodings)), key=lambda index: len(encodings[index].ids))
        for start in range(0, len(order), _BATCH_ROWS):
            batch = order[start : start + _BATCH_ROWS]
            rows = [np.array(encodings[index].ids, dtype=np.int32) for index in batch]
            outputs = self._executor.run(pad(rows, output))
            results |= {index: outputs[row].copy() for row, index in enumerate(batch)}
        return [results[index] for index in range(len(encodings))]
