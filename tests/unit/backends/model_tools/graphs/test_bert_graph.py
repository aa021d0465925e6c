"""The fused graph computes BERT, whatever travels in the same batch."""

import hashlib

import numpy as np
import pytest
from onnx import helper

from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.model_tools.graphs.bert import build_bert
from sluicegate.backends.model_tools.graphs.heads import add_pooling
from sluicegate.backends.model_tools.graphs.options import GraphOptions
from sluicegate.backends.model_tools.graphs.shapes import BertShape
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError
from sluicegate.backends.types import OutputKind
from testing.bert import pooled_bert, seeded_weights
from tests.support.bert_reference import reference_tokens
from tests.support.graph_runs import Row, open_graph, run_rows

SHAPE = BertShape(layers=2, hidden=32, heads=4, intermediate=64, vocab=50, positions=24)
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def weights() -> Weights:
    return seeded_weights(SHAPE, seed=3)


@pytest.fixture(scope="module", params=["fused", "gathered"])
def graph(
    request: pytest.FixtureRequest, weights: Weights, tmp_path_factory: pytest.TempPathFactory
) -> OnnxExecutor:
    path = tmp_path_factory.mktemp("bert") / "model.onnx"
    options = GraphOptions(attention=request.param)
    path.write_bytes(pooled_bert(SHAPE, weights, options).SerializeToString())
    return open_graph(path, dimensions=SHAPE.hidden)


def _rows(*lengths: int) -> list[Row]:
    random = np.random.default_rng(5)
    return [
        (random.integers(1, 50, length).tolist(), random.integers(0, 2, length).tolist())
        for length in lengths
    ]


def test_a_single_row_equals_the_reference(graph: OnnxExecutor, weights: Weights) -> None:
    """Both outputs of one row are those of the float64 forward pass."""
    (row,) = _rows(11)

    tokens = run_rows(graph, [row], OutputKind.TOKENS)[0]
    pooled = run_rows(graph, [row], OutputKind.POOLED)[0]

    expected = reference_tokens(SHAPE, weights, *row)
    np.testing.assert_allclose(tokens, expected, atol=TOLERANCE)
    np.testing.assert_allclose(pooled, expected.mean(axis=0), atol=TOLERANCE)


def test_padded_rows_of_a_batch_equal_the_reference(graph: OnnxExecutor, weights: Weights) -> None:
    """Padding changes neither the tokens of a row nor their mean."""
    rows = _rows(3, 24, 1, 9)

    tokens = run_rows(graph, rows, OutputKind.TOKENS)
    pooled = run_rows(graph, rows, OutputKind.POOLED)

    for place, row in enumerate(rows):
        expected = reference_tokens(SHAPE, weights, *row)
        np.testing.assert_allclose(tokens[place, : len(row[0])], expected, atol=TOLERANCE)
        np.testing.assert_allclose(pooled[place], expected.mean(axis=0), atol=TOLERANCE)


def test_batch_mates_do_not_change_a_bit(graph: OnnxExecutor) -> None:
    """At equal shape and place, a row's answer is the same bits beside any other rows."""
    row, *mates = _rows(7, 12, 2, 9)
    others = [([1] * 12, [1] * 12), *_rows(5, 8)]

    first = run_rows(graph, [row, *mates], OutputKind.POOLED, length=12)[0]
    second = run_rows(graph, [row, *others], OutputKind.POOLED, length=12)[0]

    assert first.tobytes() == second.tobytes()


def test_a_row_without_tokens_pools_to_zeros(graph: OnnxExecutor) -> None:
    """Nothing divided by nothing is not NaN."""
    pooled = run_rows(graph, [([], []), *_rows(4)], OutputKind.POOLED)

    assert not pooled[0].any()
    assert np.isfinite(pooled).all()


def test_equal_arguments_build_equal_bytes(weights: Weights) -> None:
    """The digest of a built model names its weights and nothing else."""
    first = build_bert(SHAPE, weights).SerializeToString()
    second = build_bert(SHAPE, seeded_weights(SHAPE, seed=3)).SerializeToString()

    assert first == second


def test_an_exact_mean_keeps_its_bytes() -> None:
    """With other bytes, an encoder that is imported again would get another revision."""
    graph = helper.make_graph([], "encoder", [], [])
    encoder = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])

    content = add_pooling(encoder, "mean", hidden=4, exact=True).SerializeToString()

    assert hashlib.blake2b(content, digest_size=6).hexdigest() == "d9b794003385"


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("embeddings.LayerNorm.bias", None), ("encoder.layer.1.output.dense.bias", np.zeros(3))],
)
def test_wrong_weights_are_named(
    weights: Weights, name: str, tensor: np.ndarray[tuple[int], np.dtype[np.float32]] | None
) -> None:
    """A weight that is missing or of another size is refused by its name."""
    wrong = {key: value for key, value in weights.items() if key != name}
    if tensor is not None:
        wrong[name] = tensor

    with pytest.raises(WeightsError, match=name):
        build_bert(SHAPE, wrong)
