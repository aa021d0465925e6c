"""Holds answers as a job keeps and writes them."""

from typing import Any

import msgspec
import numpy as np

from backends.bulk.runner import BulkFailure, Outcome
from backends.pipelines.ask import encode_result
from backends.protocol import Task
from backends.types import FloatArray


class BulkAnswer(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Holds an item's answer as JSON, a vector as float32; with a `code` it has failed."""

    payload: bytes = b""
    tokens: int = 0
    truncated_from: int = 0
    code: str = ""
    detail: str = ""
    rows: int = 0
    """Rows that the model ran for it."""
    is_shared: bool = False
    """It was found in the cache of a gateway."""


def read_vector(payload: bytes) -> FloatArray:
    """Return the vector that an answer of `embed` holds."""
    return np.frombuffer(payload, np.float32)


def make_answer(task: Task, outcome: Outcome) -> BulkAnswer:
    """Return an outcome as it is kept."""
    if isinstance(outcome, BulkFailure):
        return BulkAnswer(code=outcome.code, detail=outcome.detail)
    is_vector = task is Task.EMBED
    payload = vector_bytes(outcome.value["embedding"]) if is_vector else outcome.as_json()
    return BulkAnswer(
        payload=payload,
        rows=outcome.rows,
        tokens=outcome.tokens,
        truncated_from=outcome.truncated_from,
    )


def vector_bytes(values: Any) -> bytes:
    """Return a vector as an answer holds it."""
    return np.asarray(values, np.float32).tobytes()


def answer_json(task: Task, answer: BulkAnswer) -> bytes:
    """Return an answer as the gateway sends it."""
    if task is Task.EMBED:
        return encode_result({"embedding": read_vector(answer.payload)})
    return answer.payload
