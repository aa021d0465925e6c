"""Defines the output columns of each task, and fills them with results."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from sluicegate.bulk.files import import_pyarrow
from sluicegate.bulk.results import StoredResult, read_vector
from sluicegate.wire.protocol import Task

_NAMES: dict[Task, tuple[str, ...]] = {
    Task.CLASSIFY: ("labels",),
    Task.ZERO_SHOT: ("labels",),
    Task.CHOOSE: ("choice", "scores"),
    Task.EMBED: ("embedding",),
    Task.RERANK: ("score",),
    Task.ENTITIES: ("entities",),
    Task.INFER: ("result",),
    Task.TOKENIZE: ("count", "fits", "windows", "ids", "tokens", "offsets"),
    Task.DETOKENIZE: ("text",),
}
TRUNCATED = "truncated_from"


def result_names(task: Task) -> tuple[str, ...]:
    """Return the names of the result columns of a task."""
    return (*_NAMES[task], TRUNCATED)


def result_types(task: Task) -> dict[str, Any]:
    """Return the Arrow types of the result columns of a task."""
    arrow = import_pyarrow()
    text, number, place = arrow.string(), arrow.float64(), arrow.int32()
    label = [("label", text), ("score", number)]
    types = {
        "labels": arrow.list_(arrow.struct(label)),
        "choice": place,
        "scores": arrow.list_(number),
        "embedding": arrow.list_(arrow.float32()),
        "score": number,
        "entities": arrow.list_(
            arrow.struct([*label, ("text", text), ("start", place), ("end", place)])
        ),
        "result": text,
        "count": place,
        "fits": arrow.bool_(),
        "windows": place,
        "ids": arrow.list_(place),
        "tokens": arrow.list_(text),
        "offsets": arrow.list_(arrow.list_(place)),
        "text": text,
        TRUNCATED: place,
    }
    return {name: types[name] for name in result_names(task)}


def result_arrays(task: Task, results: Sequence[StoredResult]) -> list[Any]:
    """Return results as Arrow arrays, in the order of `result_types`."""
    arrow, types = import_pyarrow(), result_types(task)
    truncated = arrow.array([result.truncated_from for result in results], types[TRUNCATED])
    if task is Task.EMBED:
        return [_vectors(results), truncated]
    if task is Task.INFER:
        texts = [result.payload.decode() for result in results]
        return [arrow.array(texts, types["result"]), truncated]
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    values = [decode(result.payload) for result in results]
    filled = [
        arrow.array([value.get(name) for value in values], types[name]) for name in _NAMES[task]
    ]
    return [*filled, truncated]


def _vectors(results: Sequence[StoredResult]) -> Any:
    arrow = import_pyarrow()
    vectors = [read_vector(result.payload) for result in results]
    ends = np.cumsum([0, *map(len, vectors)], dtype=np.int32)
    flat = np.concatenate(vectors) if vectors else np.zeros(0, np.float32)
    return arrow.ListArray.from_arrays(arrow.array(ends), arrow.array(flat))
