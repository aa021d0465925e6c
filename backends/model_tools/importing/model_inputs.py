"""Adds nodes to an exported graph that adapt its inputs to those that a backend sends.

A backend sends ids, a mask and token types, and pads rows with the id 0. Nodes are added in two
cases:

- The graph has an input `position_ids`. The nodes compute the positions from the ids and
  the mask.
- The id of the model's padding token is not 0. The nodes replace the zeros by that id,
  because some graphs derive a mask or positions from the ids.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from sluicegate.backends.repository.config_defaults import padding_id, padding_position

_IDS, _MASK, _POSITIONS = "input_ids", "attention_mask", "position_ids"
_PREFIX = "sluicegate_"


def complete_inputs(model: ModelProto, config: Mapping[str, Any]) -> bool:
    """Add the nodes that a graph needs; return whether any were added.

    `config` is the checkpoint's complete configuration.

    Raises:
        ValueError: the model counts positions from its padding token, but has no padding token.
    """
    inputs = {value.name: value for value in model.graph.input}
    padding = padding_id(config)
    is_done = any(tensor.name.startswith(_PREFIX) for tensor in model.graph.initializer)
    if is_done or _IDS not in inputs or (padding == 0 and _POSITIONS not in inputs):
        return False
    ids_type = inputs[_IDS].type.tensor_type.elem_type
    nodes: list[NodeProto] = []
    ids = _IDS
    if padding != 0:
        if _MASK not in inputs:
            mask = model.graph.input.add()
            mask.CopyFrom(inputs[_IDS])
            mask.name = _MASK
        _replace(model, {_IDS: f"{_PREFIX}ids"})
        ids = f"{_PREFIX}ids"
        nodes += _padded(model, ids, padding, ids_type)
    if _POSITIONS in inputs:
        kept = [value for value in model.graph.input if value.name != _POSITIONS]
        wanted = inputs[_POSITIONS].type.tensor_type.elem_type
        del model.graph.input[:]
        model.graph.input.extend(kept)
        nodes += _positions(model, ids, padding_position(config), ids_type, wanted)
    all_nodes = [*nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(all_nodes)
    return True


def _padded(model: ModelProto, ids: str, padding: int, kind: int) -> Iterator[NodeProto]:
    """Yield nodes that put the padding token's id where the mask is 0."""
    real, pad = f"{_PREFIX}real", f"{_PREFIX}pad_id"
    _constant(model, pad, padding, kind)
    yield helper.make_node("Cast", [_MASK], [real], to=TensorProto.BOOL)
    yield helper.make_node("Where", [real, _IDS, pad], [ids])


def _positions(
    model: ModelProto, ids: str, padding: int | None, kind: int, wanted: int
) -> Iterator[NodeProto]:
    """Yield nodes that compute positions.

    Without `padding`, positions begin at 0. With `padding`, positions advance only at real tokens,
    starting from the padding token's id.
    """
    names = ["one", "axis", "first", "like", "counts", "along", "masked", "positions"]
    one, axis, first, like, counts, along, masked, positions = [_PREFIX + name for name in names]
    _constant(model, axis, 1, TensorProto.INT64)
    _constant(model, first, -1 if padding is None else padding, kind)
    if padding is None:
        _constant(model, one, 1, kind)
        yield helper.make_node("Sub", [ids, ids], [like])
        yield helper.make_node("Add", [like, one], [counts])
    else:
        yield helper.make_node("Equal", [ids, first], [one])
        yield helper.make_node("Not", [one], [like])
        yield helper.make_node("Cast", [like], [counts], to=kind)
    yield helper.make_node("CumSum", [counts, axis], [along])
    yield helper.make_node("Mul", [along, counts], [masked])
    yield helper.make_node("Add", [masked, first], [positions])
    yield helper.make_node("Cast", [positions], [_POSITIONS], to=wanted)


def _constant(model: ModelProto, name: str, value: int, kind: int) -> None:
    array = np.array(value, dtype=helper.tensor_dtype_to_np_dtype(kind))
    model.graph.initializer.append(numpy_helper.from_array(array, name))


def _replace(model: ModelProto, names: Mapping[str, str]) -> None:
    """Rename values that nodes read.

    Nodes of subgraphs are included, because they may read values of the outer graph.
    """
    waiting: list[Sequence[NodeProto]] = [model.graph.node]
    while waiting:
        for node in waiting.pop():
            for place, name in enumerate(node.input):
                node.input[place] = names.get(name, name)
            waiting += [each.g.node for each in node.attribute if each.HasField("g")]
