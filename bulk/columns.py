"""Defines the output columns of each task, and fills them with results."""

import types
from collections.abc import Sequence
from typing import Any, Final, Union, get_args, get_origin

import msgspec
import numpy as np

from sluicegate.bulk.files import import_pyarrow
from sluicegate.bulk.results import StoredResult, read_vector
from sluicegate.gateway.api.schemas import BODIES
from sluicegate.wire.protocol import Task

_RESULTS = {body.task: body.answer.each_result[0] for body in BODIES}
# Fields of results that are not columns: they belong to a request, or stand in another column.
_LEFT_OUT: Final = {"truncated", "index", "document"}
_VECTOR, _OWN = "embedding", "result"
TRUNCATED = "truncated_from"


def result_names(task: Task) -> tuple[str, ...]:
    """Return the names of the result columns of a task."""
    return (*_fields(task), TRUNCATED)


def _fields(task: Task) -> dict[str, Any]:
    """Return the type of each result column by its name, as the API describes results."""
    if task is Task.INFER:
        return {_OWN: str}
    fields = msgspec.structs.fields(_RESULTS[task])
    if task is Task.EMBED:  # a job asks for no other output
        fields = tuple(field for field in fields if field.name == _VECTOR)
    return {field.name: field.type for field in fields if field.name not in _LEFT_OUT}


def result_types(task: Task) -> dict[str, Any]:
    """Return the Arrow types of the result columns of a task."""
    arrow = import_pyarrow()
    found = {name: _arrow_type(kind) for name, kind in _fields(task).items()}
    if task is Task.EMBED:
        found[_VECTOR] = arrow.list_(arrow.float32())
    return {**found, TRUNCATED: arrow.int32()}


def _arrow_type(kind: Any) -> Any:
    """Return the Arrow type for a type of a result; values of all columns may be missing."""
    arrow = import_pyarrow()
    simple = {str: arrow.string, float: arrow.float64, int: arrow.int32, bool: arrow.bool_}
    if kind in simple:
        return simple[kind]()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return arrow.struct([(field.name, _arrow_type(field.type)) for field in fields])
    first, *_ = get_args(kind)
    is_optional = get_origin(kind) in (Union, types.UnionType)
    return _arrow_type(first) if is_optional else arrow.list_(_arrow_type(first))


def result_arrays(task: Task, results: Sequence[StoredResult]) -> list[Any]:
    """Return results as Arrow arrays, in the order of `result_types`."""
    arrow, kinds = import_pyarrow(), result_types(task)
    truncated = arrow.array([result.truncated_from for result in results], kinds[TRUNCATED])
    if task is Task.EMBED:
        return [_vectors(results), truncated]
    if task is Task.INFER:
        texts = [result.payload.decode() for result in results]
        return [arrow.array(texts, kinds[_OWN]), truncated]
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    values = [decode(result.payload) for result in results]
    filled = [
        arrow.array([value.get(name) for value in values], kinds[name]) for name in _fields(task)
    ]
    return [*filled, truncated]


def _vectors(results: Sequence[StoredResult]) -> Any:
    arrow = import_pyarrow()
    vectors = [read_vector(result.payload) for result in results]
    ends = np.cumsum([0, *map(len, vectors)], dtype=np.int32)
    flat = np.concatenate(vectors) if vectors else np.zeros(0, np.float32)
    return arrow.ListArray.from_arrays(arrow.array(ends), arrow.array(flat))
