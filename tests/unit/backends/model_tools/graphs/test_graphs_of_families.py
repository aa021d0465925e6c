"""Graphs for GPUs of every family give the results of the graph for CPUs.

They run in ONNX Runtime on a CPU, packed ones with the operators that only CUDA has expanded to
standard ones. Still to be seen on a device: that `PackedMultiHeadAttention` takes no `bias`, and an
`attention_bias` of one row or one head; that `RemovePadding` takes rows of one float; that
`RotaryEmbedding` takes up to 65,535 tokens as rows; and which graph is quickest.
"""

import json
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from sluicegate.backends.model_tools.graphs.checkpoint import build_checkpoint
from sluicegate.backends.model_tools.graphs.options import Attention, GraphOptions, Precision
from sluicegate.backends.model_tools.graphs.weights import WeightsError, read_safetensors
from tests.parity.checkpoints import Checkpoint, Family, Purpose, write_checkpoint
from tests.support.expanded_graphs import expand
from tests.support.graph_runs import with_shapes

# Wider than local attention reaches, with rows of one token and of all, and with one of none, as
# rounding up adds them on a GPU.
LENGTHS = (3, 44, 1, 29, 0)
TOLERANCE: dict[Precision, float] = {"fp32": 3e-6, "fp16": 1e-2}
PADDED: list[Attention] = ["heads", "ranges"]
FAMILIES: list[Family] = [
    *("bert", "distilbert", "roberta", "mpnet", "electra", "albert", "xlm-roberta"),
    *("deberta", "modernbert"),
]
PURPOSES: list[Purpose] = ["text", "tokens", "embed"]
Outputs = dict[str, NDArray[Any]]


class Built:
    """Builds graphs of one checkpoint."""

    def __init__(self, family: Family, purpose: Purpose, folder: Path) -> None:
        source = write_checkpoint(Checkpoint(family=family, purpose=purpose), folder)
        self._config = json.loads((source / "config.json").read_bytes())
        self._weights = read_safetensors(source / "model.safetensors")

    def __call__(self, attention: Attention, precision: Precision = "fp32") -> ModelProto:
        options = GraphOptions(attention=attention, precision=precision)
        return build_checkpoint(self._config, self._weights, options=options)

    @cached_property
    def expected(self) -> Outputs:
        """What the graph for CPUs answers."""
        return run(self("gathered"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family, Purpose], Built]:
    """Return the checkpoint of a family for a purpose, which is written once."""
    return cache(lambda family, purpose: Built(family, purpose, tmp_path_factory.mktemp("built")))


def feeds(model: ModelProto) -> dict[str, NDArray[np.int32]]:
    random = np.random.default_rng(7)
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int32)
    ids = random.integers(5, 700, mask.shape, dtype=np.int32) * mask
    # Some families count what is not the padding's id, which is 0 or 1.
    types = np.zeros_like(ids)
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {value.name: given[value.name] for value in model.graph.input}


def run(model: ModelProto) -> Outputs:
    """Return what ONNX Runtime's CPU makes of real tokens."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return real(model, session.run(None, feeds(model)))


def real(model: ModelProto, found: list[NDArray[Any]]) -> Outputs:
    mask = feeds(model)["attention_mask"] > 0
    names = [value.name for value in model.graph.output]
    return {
        name: values[mask if values.ndim > mask.ndim else mask.any(axis=1)]
        for name, values in zip(names, found, strict=True)
    }


def assert_equal(found: Outputs, expected: Outputs, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        allowed = tolerance * np.abs(values).max()
        np.testing.assert_allclose(found[name], values, atol=allowed, err_msg=name)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("attention", PADDED)
@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("family", ["mpnet", "deberta", "modernbert"])
def test_padded_graphs_answer_as_the_graph_for_cpus(
    built: Callable[[Family, Purpose], Built],
    family: Family,
    purpose: Purpose,
    attention: Attention,
    precision: Precision,
) -> None:
    """A CPU computes fp16 in float32 between casts: this proves the weights and the wiring."""
    checkpoint = built(family, purpose)
    model = checkpoint(attention, precision)

    assert_equal(run(model), checkpoint.expected, TOLERANCE[precision])

    operators = {node.op_type for node in model.graph.node}
    assert "MultiHeadAttention" in operators
    assert "Shape" not in operators  # with a part on the CPU it were no CUDA graph


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_graphs_answer_as_the_graph_for_cpus(
    built: Callable[[Family, Purpose], Built], family: Family, purpose: Purpose
) -> None:
    checkpoint = built(family, purpose)

    for precision, tolerance in TOLERANCE.items():
        found = run(expand(checkpoint("packed", precision)))
        assert_equal(found, checkpoint.expected, tolerance)


@pytest.mark.parametrize("attention", [*PADDED, "packed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_and_types_of_graphs_are_inferred_by_onnx_runtime(
    built: Callable[[Family, Purpose], Built], family: Family, attention: Attention
) -> None:
    model = built(family, "tokens")(attention, "fp16")

    inferred = with_shapes(model)

    known = {value.name: value.type.tensor_type for value in inferred.graph.value_info}
    contexts = [node for node in model.graph.node if node.op_type.endswith("HeadAttention")]
    for node in contexts:
        assert known[node.output[0]].elem_type == TensorProto.FLOAT16
        assert known[node.output[0]].shape.dim[-1].dim_value == 32
    assert len(contexts) == 2


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("deberta", GraphOptions(attention="fused")),
        ("deberta", GraphOptions(attention="heads", precision="bf16")),
        ("modernbert", GraphOptions(attention="fused")),
        ("modernbert", GraphOptions(attention="plain", precision="fp16")),
    ],
)
def test_options_that_a_family_lacks_are_refused(
    built: Callable[[Family, Purpose], Built], family: Family, options: GraphOptions
) -> None:
    with pytest.raises(WeightsError, match=options.attention):
        built(family, "text")(options.attention, options.precision)
