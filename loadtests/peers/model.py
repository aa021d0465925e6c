"""Runs the demo's `sentiment` for every peer: texts in, scores out."""

import os
from pathlib import Path

import numpy as np
import tokenizers

from loadtests.peers.configuration import MODELS

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime  # type: ignore[import-untyped]


class Sentiment:
    """A session of its own with `threads` threads, and what stands around it."""

    def __init__(self, threads: int) -> None:
        models = Path(os.environ[MODELS])
        encoder = models / "minilm" / "1"
        self._tokenizer = tokenizers.Tokenizer.from_file(str(encoder / "tokenizer.json"))
        self._tokenizer.enable_truncation(256)
        self._tokenizer.enable_padding()  # to the longest of a batch
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            str(encoder / "model.onnx"),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],  # slower on a CPU
        )
        head = np.load(models / "sentiment" / "1" / "head.npz")
        self._weights, self._bias = head["w0"], head["b0"]

    def scores(self, texts: list[str]) -> list[list[float]]:
        """Return the shares of negative and positive for each text."""
        encoded = self._tokenizer.encode_batch_fast(texts)
        ids = np.array([row.ids for row in encoded], np.int32)
        mask = np.array([row.attention_mask for row in encoded], np.int32)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (pooled,) = self._session.run(["pooled"], inputs)
        pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
        raised = np.exp(pooled @ self._weights + self._bias)
        shares: list[list[float]] = (raised / raised.sum(axis=1, keepdims=True)).tolist()
        return shares
