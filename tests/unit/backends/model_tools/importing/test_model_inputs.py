"""Graphs that ask for positions, or know padding by its id, get both from ids and mask."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from sluicegate.backends.executors.provider import DeviceOptions, open_session
from sluicegate.backends.model_tools.importing.model_inputs import complete_inputs
from sluicegate.backends.repository.config_defaults import complete_config

IDS = np.array([[5, 6, 7, 8], [9, 5, 0, 0]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])


def graph(*inputs: str, kind: int = TensorProto.INT64) -> ModelProto:
    """Return a graph that shows its inputs as they reach its nodes."""
    values = [helper.make_tensor_value_info(name, kind, ["rows", "length"]) for name in inputs]
    outputs = [
        helper.make_tensor_value_info(f"{name}_seen", kind, ["rows", "length"]) for name in inputs
    ]
    nodes = [helper.make_node("Identity", [name], [f"{name}_seen"]) for name in inputs]
    body = helper.make_graph(nodes, "seen", values, outputs)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def seen(model: ModelProto, folder: Path, ids: NDArray[Any] = IDS) -> dict[str, list[list[int]]]:
    onnx.checker.check_model(model)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    session = open_session(path, DeviceOptions(provider="cpu"))
    types = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
    given = {"input_ids": ids, "attention_mask": MASK}
    feeds = {one.name: given[one.name].astype(types[one.type]) for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]
    return {
        name.removesuffix("_seen"): found.tolist()
        for name, found in zip(names, session.run(names, feeds), strict=True)
    }


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32])
def test_positions_of_most_families_count_all_tokens(tmp_path: Path, kind: int) -> None:
    model = graph("input_ids", "attention_mask", "position_ids", kind=kind)

    assert complete_inputs(model, {"model_type": "bert", "pad_token_id": 0})
    assert seen(model, tmp_path)["position_ids"] == [[0, 1, 2, 3], [0, 1, 2, 3]]


@pytest.mark.parametrize("kind", ["xlm-roberta", "longformer", "data2vec-text"])
@pytest.mark.parametrize("config", [{}, {"pad_token_id": 1}])
def test_positions_of_roberta_begin_after_the_padding_and_leave_it_out(
    tmp_path: Path, kind: str, config: dict[str, Any]
) -> None:
    model = graph("input_ids", "attention_mask", "position_ids")
    ids = np.array([[5, 1, 7, 8], [9, 5, 0, 0]])  # a text may hold the padding's token

    assert complete_inputs(model, complete_config({"model_type": kind, **config}))
    assert seen(model, tmp_path, ids)["position_ids"] == [[2, 1, 3, 4], [2, 3, 1, 1]]


@pytest.mark.parametrize("inputs", [("input_ids",), ("input_ids", "attention_mask")])
def test_rows_are_filled_up_with_the_padding_of_the_model(
    tmp_path: Path, inputs: tuple[str, ...]
) -> None:
    model = graph(*inputs)

    assert complete_inputs(model, {"model_type": "modernbert", "pad_token_id": 3})
    assert seen(model, tmp_path)["input_ids"] == [[5, 6, 7, 8], [9, 5, 3, 3]]


def test_a_graph_that_needs_nothing_stays_as_it_is() -> None:
    model = graph("input_ids", "attention_mask")

    assert not complete_inputs(model, {"model_type": "bert", "pad_token_id": 0})


def test_a_graph_that_has_its_nodes_gets_none_again(tmp_path: Path) -> None:
    model = graph("input_ids", "attention_mask", "position_ids")
    config = complete_config({"model_type": "roberta"})
    complete_inputs(model, config)
    once = model.SerializeToString()

    assert not complete_inputs(model, config)
    assert model.SerializeToString() == once
    assert seen(model, tmp_path)["input_ids"] == [[5, 6, 7, 8], [9, 5, 1, 1]]


def test_positions_without_a_token_to_count_from_are_refused() -> None:
    model = graph("input_ids", "attention_mask", "position_ids")

    with pytest.raises(ValueError, match="`pad_token_id` is `None`, and `esm` counts positions"):
        complete_inputs(model, complete_config({"model_type": "esm"}))
