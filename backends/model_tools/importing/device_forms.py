"""Writes the forms of a graph that suit other devices beside it, over the same weights.

A form's file holds its nodes and what is small; its weights are where they lie in the file of the
graph itself, by ONNX's way to name external data. So a form takes some hundred kilobytes.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnx import ModelProto, TensorProto

from backends.model_tools.graphs.checkpoint import build_checkpoint
from backends.model_tools.graphs.families import PREFIXES
from backends.model_tools.graphs.form import Attention
from backends.model_tools.graphs.weights import Weights, WeightsError
from backends.types import Pooling

# By provider; which is quickest there is measured by the backend that runs them.
_FORMS: Mapping[str, tuple[Attention, ...]] = MappingProxyType(
    {"cuda": ("heads", "ranges", "packed")}
)
_LEAST_BYTES = 1024
_Place = tuple[int, int]


def write_forms(
    graph: Path,
    config: Mapping[str, Any],
    weights: Weights,
    pooling: Pooling,
    finish: Callable[[Path], None],
) -> None:
    """Write `model.cuda-heads.onnx` and so on beside `graph`, which is made of the same weights.

    `finish` adds to a graph in a file what comes after the encoder, as was done with `graph`.
    """
    if str(config.get("model_type")) not in PREFIXES:
        return
    places = _places(graph.read_bytes())
    for provider, kinds in _FORMS.items():
        for attention in kinds:
            try:
                form = build_checkpoint(config, weights, pooling=pooling, attention=attention)
            except WeightsError:
                continue  # no kernel computes it so
            path = graph.with_name(f"{graph.stem}.{provider}-{attention}.onnx")
            path.write_bytes(form.SerializeToString())
            finish(path)
            form = ModelProto.FromString(path.read_bytes())
            for tensor in form.graph.initializer:
                _share(tensor, graph.name, places)
            path.write_bytes(form.SerializeToString())


def _places(content: bytes) -> dict[bytes, _Place]:
    """Return where in the file each large weight lies, by the digest of its bytes."""
    places: dict[bytes, _Place] = {}
    at = 0
    for tensor in ModelProto.FromString(content).graph.initializer:
        length = len(tensor.raw_data)
        if length < _LEAST_BYTES:
            continue
        # They lie in their order: one search over the file finds all.
        at = content.index(tensor.raw_data, at)
        places[_digest(tensor)] = (at, length)
        at += length
    return places


def _share(tensor: TensorProto, file: str, places: Mapping[bytes, _Place]) -> None:
    place = places.get(_digest(tensor))
    if place is None:
        return
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", place[0]), ("length", place[1])):
        tensor.external_data.add(key=key, value=str(value))


def _digest(tensor: TensorProto) -> bytes:
    return hashlib.blake2b(tensor.raw_data, digest_size=16).digest()
