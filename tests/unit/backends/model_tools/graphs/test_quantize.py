"""A graph in eight bits answers nearly as before, and a row by that row alone."""

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from sluicegate.backends.model_tools.graphs.options import Attention, GraphOptions
from sluicegate.backends.model_tools.graphs.quantize import expose, find_products, quantize
from sluicegate.backends.model_tools.graphs.ranges import ProductPlan, plan_product
from sluicegate.backends.model_tools.graphs.shapes import BertShape
from sluicegate.backends.model_tools.tuning.calibration import collect
from sluicegate.backends.qualification.text_runs import make_batches
from sluicegate.backends.types import Encoding, FloatArray, OutputKind
from testing.bert import pooled_bert, seeded_weights
from tests.support.graph_runs import Row, open_graph, run_rows

SHAPE = BertShape(layers=2, hidden=32, heads=4, intermediate=64, vocab=50, positions=24)
FEED = ("attention.output.dense", "intermediate.dense", "output.dense")
LAYERS: dict[Attention, tuple[str, ...]] = {
    "fused": ("attention.self", *FEED),
    "gathered": (*(f"attention.self.{name}" for name in ("query", "key", "value")), *FEED),
}
KINDS: dict[Attention, tuple[str, str]] = {
    "fused": ("Attention", "QAttention"),
    "gathered": ("MatMul", "MatMulIntegerToFloat"),
}


@pytest.fixture(scope="module", params=LAYERS)
def attention(request: pytest.FixtureRequest) -> Attention:
    kind: Attention = request.param
    return kind


@pytest.fixture(scope="module")
def model(attention: Attention) -> ModelProto:
    options = GraphOptions(attention=attention)
    return pooled_bert(SHAPE, seeded_weights(SHAPE, seed=3), options)


@pytest.fixture(scope="module")
def plans(model: ModelProto) -> dict[str, ProductPlan]:
    random = np.random.default_rng(8)
    ids = [random.integers(1, 50, n).astype(np.int32) for n in random.integers(2, 24, 60)]
    rows = [Encoding(ids=row, type_ids=None, key=row.tobytes()) for row in ids]
    products = find_products(model)
    samples = collect(model, products, make_batches(rows), beside=Path("model.onnx"))
    return {p.name: plan_product(samples[p.name], p.kernel) for p in products}


def rows(*lengths: int) -> list[Row]:
    random = np.random.default_rng(5)
    return [(random.integers(1, 50, length).tolist(), [0] * length) for length in lengths]


def run(model: ModelProto, folder: Path, given: list[Row], length: int | None = None) -> FloatArray:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    graph = open_graph(path, dimensions=SHAPE.hidden)
    return run_rows(graph, given, OutputKind.POOLED, length=length)


def test_every_product_with_weights_is_found(model: ModelProto, attention: Attention) -> None:
    names = [product.name for product in find_products(model)]

    assert names == [
        f"encoder.layer.{layer}.{part}" for layer in range(2) for part in LAYERS[attention]
    ]


def test_all_products_in_eight_bits_answer_nearly_as_before(
    model: ModelProto, plans: dict[str, ProductPlan], tmp_path: Path
) -> None:
    quantized = quantize(model, plans)

    before, after = (run(m, tmp_path, rows(3, 24, 1, 9)) for m in (model, quantized))

    assert np.abs(before - after).max() < 0.02 * np.abs(before).max()
    assert not np.array_equal(before, after)


def test_products_without_a_plan_stay_in_float(
    model: ModelProto, plans: dict[str, ProductPlan], attention: Attention
) -> None:
    name = f"encoder.layer.1.{LAYERS[attention][0]}"
    one = quantize(model, {name: plans[name]})

    before, after = ([node.op_type for node in m.graph.node] for m in (model, one))
    kind, whole = KINDS[attention]
    assert after.count(whole) == after.count("QuantizeLinear") == 1
    assert after.count(kind) == before.count(kind) - 1
    assert quantize(model, {}).graph.node == model.graph.node


def test_batch_mates_and_padding_do_not_change_a_bit(
    model: ModelProto, plans: dict[str, ProductPlan], tmp_path: Path
) -> None:
    """Scales are constants: nothing is taken from the batch."""
    quantized = quantize(model, plans)
    row, *mates = rows(7, 12, 2, 9)
    others: list[Row] = [([1] * 12, [1] * 12), *rows(5, 8)]

    first = run(quantized, tmp_path, [row, *mates], length=12)[0]
    second = run(quantized, tmp_path, [row, *others], length=12)[0]

    assert first.tobytes() == second.tobytes()


def test_the_weights_are_stored_once_in_eight_bits(
    model: ModelProto, plans: dict[str, ProductPlan]
) -> None:
    tensors = {tensor.name: tensor for tensor in quantize(model, plans).graph.initializer}

    kernels = [t for t in tensors.values() if t.data_type == TensorProto.INT8]
    assert len(kernels) == len(plans)
    assert "encoder.layer.0.output.dense.weight" not in tensors


def test_exposed_tensors_become_outputs_once(model: ModelProto) -> None:
    exposed = expose(model, ["state.0", "state.0", "tokens"])

    assert [output.name for output in exposed.graph.output] == ["pooled", "tokens", "state.0"]
    assert len(model.graph.output) == 2
