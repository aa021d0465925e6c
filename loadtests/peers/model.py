"""Computes the task of the benchmark for every peer: texts in, vectors or scores out."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from loadtests.peers.configuration import MODELS, TASK

Inputs = dict[str, NDArray[Any]]
# Returns the mean over the tokens of each row, `[batch, hidden]`.
Encode = Callable[[Inputs], NDArray[np.float32]]


class PeerModel:
    """Does everything around an encoder; pads rows to the longest row of a batch."""

    def __init__(self, encode: Encode, *, multiple: int | None = None) -> None:
        models = Path(os.environ[MODELS])
        self._encode = encode
        self._tokenizer = tokenizers.Tokenizer.from_file(str(models / "minilm/1/tokenizer.json"))
        self._tokenizer.enable_truncation(256)
        self._tokenizer.enable_padding(pad_to_multiple_of=multiple)
        self._head = None
        if os.environ[TASK] == "classify":
            head = np.load(models / "sentiment" / "1" / "head.npz")
            self._head = head["w0"], head["b0"]

    def rows(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each text, or its probabilities of negative and positive."""
        encoded = self._tokenizer.encode_batch_fast(texts)
        ids = np.array([row.ids for row in encoded], np.int32)
        mask = np.array([row.attention_mask for row in encoded], np.int32)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        pooled = self._encode(inputs)
        values = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        if self._head is not None:
            raised = np.exp(values @ self._head[0] + self._head[1])
            values = raised / raised.sum(axis=1, keepdims=True)
        rows: list[list[float]] = values.tolist()
        return rows


def open_model(threads: int) -> PeerModel:
    """Return the model with a new session of ONNX Runtime that has `threads` threads."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415 - not every peer has it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(Path(os.environ[MODELS]) / "minilm" / "1" / "model.onnx"),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["SkipLayerNormFusion"],  # slower on a CPU
    )

    def encode(inputs: Inputs) -> NDArray[np.float32]:
        (pooled,) = session.run(["pooled"], inputs)
        return pooled  # type: ignore[no-any-return]

    return PeerModel(encode)
