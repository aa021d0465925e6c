"""A graph with any options computes the same encoder, as far as this machine has kernels for it."""

from itertools import product
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.model_tools.graphs.bert import build_bert
from sluicegate.backends.model_tools.graphs.grids import WIDTHS
from sluicegate.backends.model_tools.graphs.options import Attention, GraphOptions, Precision
from sluicegate.backends.model_tools.graphs.shapes import BertShape
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError
from sluicegate.backends.types import OutputKind
from testing.bert import pooled_bert, seeded_weights
from tests.support.bert_reference import reference_tokens
from tests.support.graph_runs import Row, open_graph, run_rows
from tests.support.packed_operators import OPERATORS

SHAPE = BertShape(layers=2, hidden=32, heads=4, intermediate=64, vocab=50, positions=24)
OPTIONS = [
    options
    for precision, attention in product(get_args(Precision), get_args(Attention))
    if (options := GraphOptions(precision=precision, attention=attention)).problem() is None
]
TOLERANCE: dict[Precision, float] = {"fp32": 1e-5, "fp16": 2e-2}
ON_CPU = [options for options in OPTIONS if options.precision in TOLERANCE and not options.packed]


@pytest.fixture(scope="module")
def weights() -> Weights:
    return seeded_weights(SHAPE, seed=3)


def write(path: Path, weights: Weights, options: GraphOptions, shape: BertShape = SHAPE) -> Path:
    build = build_bert if options.output == "first" else pooled_bert
    path.write_bytes(build(shape, weights, options).SerializeToString())
    return path


def rows(*lengths: int) -> list[Row]:
    random = np.random.default_rng(5)
    return [
        (random.integers(1, 50, length).tolist(), random.integers(0, 2, length).tolist())
        for length in lengths
    ]


@pytest.mark.parametrize(
    "options", ON_CPU, ids=lambda options: f"{options.precision}-{options.attention}"
)
def test_graphs_with_kernels_here_equal_the_reference(
    options: GraphOptions, weights: Weights, tmp_path: Path
) -> None:
    """The CPU computes fp16 in float32, so this proves the weights and the wiring."""
    graph = open_graph(write(tmp_path / "model.onnx", weights, options), dimensions=SHAPE.hidden)
    batch = rows(3, 24, 1, 9)

    tokens = run_rows(graph, batch, OutputKind.TOKENS)
    pooled = run_rows(graph, batch, OutputKind.POOLED)

    for place, row in enumerate(batch):
        expected = reference_tokens(SHAPE, weights, *row)
        tolerance = TOLERANCE[options.precision]
        np.testing.assert_allclose(tokens[place, : len(row[0])], expected, atol=tolerance)
        np.testing.assert_allclose(pooled[place], expected.mean(axis=0), atol=tolerance)


@pytest.mark.parametrize(
    "options", ON_CPU, ids=lambda options: f"{options.precision}-{options.attention}"
)
@pytest.mark.parametrize("padding", [0, 1, 7])
def test_positions_count_the_tokens_that_are_not_padding(
    options: GraphOptions, padding: int, weights: Weights, tmp_path: Path
) -> None:
    """As RoBERTa's do: a text may hold the token that pads, at its ends too."""
    shape = msgspec.structs.replace(SHAPE, padding=padding)
    path = write(tmp_path / "model.onnx", weights, options, shape)
    texts = [[3, padding, padding, 9, 4], [5] * 23, [padding], [8, 2, padding]]

    tokens = run_rows(
        open_graph(path, dimensions=SHAPE.hidden),
        [(ids, [0] * len(ids)) for ids in texts],
        OutputKind.TOKENS,
    )

    for place, ids in enumerate(texts):
        expected = reference_tokens(shape, weights, ids, [0] * len(ids))
        tolerance = TOLERANCE[options.precision]
        np.testing.assert_allclose(tokens[place, : len(ids)], expected, atol=tolerance)


@pytest.mark.parametrize("attention", ["fused", "heads", "gathered", "plain"])
def test_the_first_tokens_alone_equal_the_reference(
    attention: Attention, weights: Weights, tmp_path: Path
) -> None:
    """Whether the last layer computes the others or not."""
    options = GraphOptions(attention=attention, output="first")
    graph = OnnxExecutor(
        GraphSource(
            path=write(tmp_path / "model.onnx", weights, options),
            outputs={OutputKind.POOLED: "first"},
            dimensions=SHAPE.hidden,
        ),
        worker_threads=1,
    )
    batch = rows(3, 24, 1, 9)

    first = run_rows(graph, batch, OutputKind.POOLED)

    for place, row in enumerate(batch):
        expected = reference_tokens(SHAPE, weights, *row)[0]
        np.testing.assert_allclose(first[place], expected, atol=1e-5)


def test_gathered_rows_keep_their_bits_wherever_they_stand(
    weights: Weights, tmp_path: Path
) -> None:
    """In one width, neither the place among the tokens nor how many there are changes a bit."""
    options = GraphOptions(attention="gathered")
    graph = open_graph(write(tmp_path / "model.onnx", weights, options), dimensions=SHAPE.hidden)
    row, *mates = rows(7, 12, 2, 9, 1, 24)
    batches = [[row], [row, *mates], [*mates, row], [mates[0], row], [mates[3], row, *mates]]

    answers = {
        run_rows(graph, batch, OutputKind.POOLED, length=24)[batch.index(row)].tobytes()
        for batch in batches
    }

    assert len(answers) == 1


def test_gathered_rows_keep_their_bits_whatever_lengths_are_beside_them(
    weights: Weights, tmp_path: Path
) -> None:
    """A row of a class with a width of its own is as wide beside rows of any length."""
    graph = open_graph(
        write(tmp_path / "model.onnx", weights, GraphOptions(attention="gathered")),
        dimensions=SHAPE.hidden,
    )
    mates = rows(1, 6, WIDTHS[0], WIDTHS[0] + 1, WIDTHS[-1], 24)

    for subject in rows(*range(1, WIDTHS[-1] + 1)):
        batches = [*([subject, mate] for mate in mates), [subject, *mates]]
        length = len(subject[0])
        answers = {
            run_rows(graph, batch, OutputKind.TOKENS)[0, :length].tobytes() for batch in batches
        }
        assert len(answers) == 1, length


def test_gathered_rows_keep_their_bits_at_any_width(tmp_path: Path) -> None:
    """Their tokens and their means, of one row and of several, up to 64 tokens."""
    shape = msgspec.structs.replace(SHAPE, positions=80)
    options = GraphOptions(attention="gathered")
    model = pooled_bert(shape, seeded_weights(shape, seed=3), options)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    graph = open_graph(path, dimensions=shape.hidden)

    # Kernels divide rows by 4, 8, 16 and 32.
    for subject in rows(*range(1, 18), 23, 24, 25, 31, 32, 33, 48, 63, 64):
        length = len(subject[0])
        widths = [length, length + 1, length + 2, length + 3, length + 4, 68]
        for kind in (OutputKind.POOLED, OutputKind.TOKENS):
            answers = {
                run_rows(graph, batch, kind, length=width)[0, :length].tobytes()
                if kind is OutputKind.TOKENS
                else run_rows(graph, batch, kind, length=width)[0].tobytes()
                for width in widths
                for batch in ([subject], [subject, subject], [subject, *rows(length)])
            }
            assert len(answers) == 1, (length, kind)


@pytest.mark.parametrize(
    "lengths",
    [
        (1, WIDTHS[0]),
        (WIDTHS[0] + 1, WIDTHS[-1]),
        (WIDTHS[-1] + 1, 24),
        (24, WIDTHS[0] + 1, 2, WIDTHS[-1], 5, WIDTHS[0], 23),
    ],
    ids=["short", "between", "long", "all"],
)
def test_classes_of_lengths_equal_the_reference_with_and_without_rows(
    lengths: tuple[int, ...], weights: Weights, tmp_path: Path
) -> None:
    """In any order of the rows, and where a class has none."""
    graph = open_graph(
        write(tmp_path / "model.onnx", weights, GraphOptions(attention="gathered")),
        dimensions=SHAPE.hidden,
    )
    batch = rows(*lengths)

    tokens = run_rows(graph, batch, OutputKind.TOKENS)

    for place, row in enumerate(batch):
        expected = reference_tokens(SHAPE, weights, *row)
        np.testing.assert_allclose(tokens[place, : len(row[0])], expected, atol=1e-5)


@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: f"{options.precision}-{options.attention}"
)
def test_a_graph_lacks_nothing_but_perhaps_a_kernel(
    options: GraphOptions, weights: Weights, tmp_path: Path
) -> None:
    """Types and shapes of a graph are inferred before its kernels are looked for."""
    path = write(tmp_path / "model.onnx", weights, options)

    try:
        open_graph(path, dimensions=SHAPE.hidden)
    except ModelProblem as error:
        refused = str(error)
        assert options.packed or options.precision == "bf16"
        assert "NOT_IMPLEMENTED" in refused  # the CPU has no such kernel


@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: f"{options.precision}-{options.attention}"
)
def test_outputs_are_float32_and_weights_are_not(options: GraphOptions, weights: Weights) -> None:
    """What leaves a graph is float32; what it holds is of its precision."""
    graph = build_bert(SHAPE, weights, options).graph
    types = {
        "fp32": TensorProto.FLOAT,
        "fp16": TensorProto.FLOAT16,
        "bf16": TensorProto.BFLOAT16,
    }

    kernels = [t for t in graph.initializer if t.name.endswith("dense.weight")]

    assert {t.data_type for t in kernels} == {types[options.precision]}
    assert {o.type.tensor_type.elem_type for o in graph.output} == {TensorProto.FLOAT}


def test_packed_graphs_equal_the_reference(weights: Weights) -> None:
    """As their operators are documented: the CPU has no kernels for them."""
    batch = rows(3, 24, 1, 9)
    ids, types, mask = np.zeros((3, len(batch), 24), dtype=np.int32)
    for place, (row, kinds) in enumerate(batch):
        ids[place, : len(row)] = row
        types[place, : len(row)] = kinds
        mask[place, : len(row)] = 1
    graph = ReferenceEvaluator(
        pooled_bert(SHAPE, weights, GraphOptions(attention="packed")), new_ops=OPERATORS
    )

    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    pooled, tokens = map(np.asarray, graph.run(["pooled", "tokens"], feeds))

    for place, whole in enumerate(batch):
        expected = reference_tokens(SHAPE, weights, *whole)
        np.testing.assert_allclose(tokens[place, : len(whole[0])], expected, atol=1e-5)
        np.testing.assert_allclose(pooled[place], expected.mean(axis=0), atol=1e-5)
    assert not tokens[mask == 0].any()


def test_weights_in_bf16_are_rounded_to_nearest(weights: Weights) -> None:
    """No value is further from its weight than half of the last of eight bits."""
    graph = build_bert(SHAPE, weights, GraphOptions(precision="bf16", attention="heads")).graph
    name = "encoder.layer.0.output.dense.weight"
    tensor = next(t for t in graph.initializer if t.name == name)

    rounded = onnx.numpy_helper.to_array(tensor).astype(np.float32)

    exact = weights[name].T
    assert not np.array_equal(rounded, exact)
    assert (np.abs(rounded - exact) <= np.abs(exact) * 2.0**-8).all()


def test_a_weight_too_large_for_fp16_is_named(weights: Weights) -> None:
    """It would be infinite, and every answer with it."""
    name = "encoder.layer.1.output.dense.bias"
    large = {**weights, name: weights[name] + np.float32(70_000)}

    with pytest.raises(WeightsError, match=name):
        build_bert(SHAPE, large, GraphOptions(precision="fp16"))


@pytest.mark.parametrize(
    "options",
    [
        GraphOptions(precision="bf16"),
        GraphOptions(precision="bf16", attention="packed"),
        GraphOptions(precision="fp16", attention="gathered"),
    ],
)
def test_impossible_options_are_refused(options: GraphOptions, weights: Weights) -> None:
    """There is no such kernel."""
    with pytest.raises(WeightsError):
        build_bert(SHAPE, weights, options)
