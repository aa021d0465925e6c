"""Defines results as a job stores and writes them."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.bulk.runner import BulkFailure, BulkResult, Outcome
from sluicegate.wire.protocol import Task


class StoredResult(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Holds the result of an item: JSON, a float32 vector, or a failure with a `code`."""

    payload: bytes = b""
    tokens: int = 0
    truncated_from: int = 0
    code: str = ""
    detail: str = ""
    rows: int = 0
    """The rows that the model computed for it."""
    is_shared: bool = False
    """Whether it was found in the result cache of gateways."""


def read_vector(payload: bytes) -> NDArray[np.float32]:
    """Return the vector of a result of `embed`."""
    return np.frombuffer(payload, np.float32)


def make_result(task: Task, outcome: Outcome) -> StoredResult:
    """Convert an outcome to a `StoredResult`."""
    if isinstance(outcome, BulkFailure):
        return StoredResult(code=outcome.code, detail=outcome.detail)
    is_vector = task is Task.EMBED
    payload = vector_bytes(outcome.value["embedding"]) if is_vector else outcome.as_json()
    return StoredResult(
        payload=payload,
        rows=outcome.rows,
        tokens=outcome.tokens,
        truncated_from=outcome.truncated_from,
    )


def vector_bytes(values: Any) -> bytes:
    """Return the payload of a vector."""
    return np.asarray(values, np.float32).tobytes()


def result_json(task: Task, result: StoredResult) -> bytes:
    """Return a result as JSON, as the gateway sends it."""
    if task is Task.EMBED:
        return BulkResult(value={"embedding": read_vector(result.payload)}).as_json()
    return result.payload
