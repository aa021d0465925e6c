"""Graphs of transformer layers give the results of the same layers in numpy."""

import math
from typing import Any

import msgspec
import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
from numpy.typing import NDArray

from sluicegate.backends.model_tools.graphs.graph_builder import GraphBuilder
from sluicegate.backends.model_tools.graphs.options import Attention, GraphOptions
from sluicegate.backends.model_tools.graphs.rotary import Rotary
from sluicegate.backends.model_tools.graphs.stack import AttentionKind, StackShape, write_stack
from sluicegate.backends.model_tools.graphs.weights import WeightsError
from tests.support.expanded_graphs import expand

HIDDEN, HEADS, SHARED, WIDTH, WIDE, WORDS, POSITIONS = 12, 4, 2, 6, 20, 30, 40
LENGTHS = (3, 31, 1, 14)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10}
Array = NDArray[np.float32]


def rotary(theta: float, **scaling: Any) -> Rotary:
    return Rotary(theta=theta, width=WIDTH, positions=POSITIONS, scaling=scaling)


# Everything that the layers of decoders have.
DECODER = StackShape(
    hidden=HIDDEN,
    heads=HEADS,
    head_width=WIDTH,
    positions=POSITIONS,
    attention=["near", "all"],
    kinds={
        "near": AttentionKind(rotary=rotary(100.0), reach=3),
        "all": AttentionKind(rotary=rotary(1000.0, **YARN)),
    },
    epsilon=1e-6,
    activation="gelu_tanh",
    key_value_heads=SHARED,
    scale=0.3,
    causal=True,
    norm="rms",
    norms="around",
    head_norms=True,
    embedding_scale=3.0,
)
BOTH_WAYS = msgspec.structs.replace(DECODER, causal=False, norms="before", activation="silu")
# Everything that the layers of BERT have.
SUMS = StackShape(
    hidden=HIDDEN,
    heads=HEADS,
    head_width=WIDTH,
    positions=POSITIONS,
    attention=["all", "all"],
    kinds={"all": AttentionKind()},
    epsilon=1e-3,
    activation="quick_gelu",
    norms="after",
    gated=False,
    learned_positions=True,
    token_types=True,
    embedding_norm=True,
    final_norm=False,
)
SHAPES = {"decoder": DECODER, "both ways": BOTH_WAYS, "sums": SUMS}


def make_weights(shape: StackShape) -> dict[str, Array]:
    random = np.random.default_rng(5)
    sizes: dict[str, tuple[int, ...]] = {
        "embeddings.words.weight": (WORDS, HIDDEN),
        "embeddings.positions.weight": (POSITIONS, HIDDEN),
        "embeddings.types.weight": (2, HIDDEN),
    }
    norms = {"embeddings.norm": HIDDEN, "norm": HIDDEN}
    linears: dict[str, tuple[int, int]] = {}
    shared = (shape.key_value_heads or HEADS) * WIDTH
    for layer in range(len(shape.attention)):
        for step in ("attention", "mlp"):
            norms |= {f"layers.{layer}.{step}.{n}": HIDDEN for n in ("norm", "branch_norm")}
        for part, rows in {"query": HEADS * WIDTH, "key": shared, "value": shared}.items():
            linears[f"layers.{layer}.attention.{part}"] = (rows, HIDDEN)
            norms[f"layers.{layer}.attention.{part}_norm"] = WIDTH
        linears[f"layers.{layer}.attention.output"] = (HIDDEN, HEADS * WIDTH)
        linears |= {f"layers.{layer}.mlp.{part}": (WIDE, HIDDEN) for part in ("gate", "up")}
        linears[f"layers.{layer}.mlp.down"] = (HIDDEN, WIDE)
    for name, size in linears.items():
        sizes |= {f"{name}.weight": size, f"{name}.bias": size[:1]}
    for name, width in norms.items():
        sizes |= {f"{name}.weight": (width,)} | (
            {f"{name}.bias": (width,)} if "_" not in name else {}
        )
    return {name: random.normal(0, 0.5, size).astype(np.float32) for name, size in sizes.items()}


class Reference:
    """Computes one row at a time, with float64."""

    def __init__(self, shape: StackShape, weights: dict[str, Array]) -> None:
        self._shape = shape
        self._weights = weights

    def __call__(self, ids: Any, types: Any) -> Any:
        shape, weights = self._shape, self._weights
        state = weights["embeddings.words.weight"][ids] * (shape.embedding_scale or 1.0)
        if shape.token_types:
            state = state + weights["embeddings.types.weight"][types]
        if shape.learned_positions:
            state = state + weights["embeddings.positions.weight"][: len(ids)]
        if shape.embedding_norm:
            state = self._norm("embeddings.norm", state)
        for layer, kind in enumerate(shape.attention):
            attention, mlp = f"layers.{layer}.attention", f"layers.{layer}.mlp"
            branch = self._attend(attention, self._before(attention, state), shape.kinds[kind])
            state = self._join(attention, branch, state)
            state = self._join(mlp, self._feed(mlp, self._before(mlp, state)), state)
        return self._norm("norm", state) if shape.final_norm else state

    def _before(self, name: str, state: Any) -> Any:
        return state if self._shape.norms == "after" else self._norm(f"{name}.norm", state)

    def _join(self, name: str, branch: Any, state: Any) -> Any:
        if self._shape.norms == "around":
            branch = self._norm(f"{name}.branch_norm", branch)
        return (
            self._norm(f"{name}.norm", state + branch)
            if self._shape.norms == "after"
            else state + branch
        )

    def _attend(self, name: str, state: Any, kind: AttentionKind) -> Any:
        shape = self._shape
        query, key, value = (self._linear(f"{name}.{p}", state) for p in ("query", "key", "value"))
        query, key, value = (each.reshape(len(state), -1, WIDTH) for each in (query, key, value))
        if shape.head_norms:
            query, key = self._rms(f"{name}.query_norm", query), self._rms(f"{name}.key_norm", key)
        if kind.rotary is not None:
            query, key = self._turn(query, kind.rotary), self._turn(key, kind.rotary)
        key, value = (np.repeat(e, HEADS // e.shape[1], axis=1) for e in (key, value))
        scores = np.einsum("qhw,khw->hqk", query, key) * (shape.scale or WIDTH**-0.5)
        away = np.arange(len(state)) - np.arange(len(state))[:, None]
        hidden = (away > 0) & shape.causal
        if kind.reach is not None:
            hidden |= np.abs(away) > kind.reach
        scores = np.where(hidden, -np.inf, scores)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        context = np.einsum("hqk,khw->qhw", shares, value).reshape(len(state), -1)
        return self._linear(f"{name}.output", context)

    def _turn(self, heads: Any, turning: Rotary) -> Any:
        angles = np.arange(len(heads))[:, None, None] * turning.frequencies()
        low, high = np.split(heads, 2, axis=-1)
        cos, sin = np.cos(angles) * turning.factor, np.sin(angles) * turning.factor
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    def _feed(self, name: str, state: Any) -> Any:
        shape = self._shape
        inner = self._linear(f"{name}.{'gate' if shape.gated else 'up'}", state)
        if shape.activation == "gelu_tanh":
            inner = (
                inner / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
            )
        else:
            inner = inner / (
                1 + np.exp(-inner * (1.702 if shape.activation == "quick_gelu" else 1))
            )
        if shape.gated:
            inner = inner * self._linear(f"{name}.up", state)
        return self._linear(f"{name}.down", inner)

    def _linear(self, name: str, state: Any) -> Any:
        return (
            state @ self._weights[f"{name}.weight"].T.astype(float) + self._weights[f"{name}.bias"]
        )

    def _norm(self, name: str, state: Any) -> Any:
        if self._shape.norm == "rms":
            return self._rms(name, state)
        centred = state - state.mean(axis=-1, keepdims=True)
        return self._rms(name, centred) + self._weights.get(f"{name}.bias", 0)

    def _rms(self, name: str, state: Any) -> Any:
        mean = (state**2).mean(axis=-1, keepdims=True)
        return state / np.sqrt(mean + self._shape.epsilon) * self._weights[f"{name}.weight"]


def run(shape: StackShape, attention: Attention, output: Any = "tokens") -> tuple[Any, Any]:
    """Return what a graph computes for some rows, and what is right."""
    random, weights = np.random.default_rng(7), make_weights(shape)
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int32)
    given = {
        "input_ids": random.integers(WORDS, size=mask.shape, dtype=np.int32) * mask,
        "attention_mask": mask,
        "token_type_ids": random.integers(2, size=mask.shape, dtype=np.int32) * mask,
    }
    graph = GraphBuilder(weights, plain=attention == "plain")
    write_stack(graph, shape, GraphOptions(attention=attention, output=output))
    model = graph.model("stack", shape.inputs, output, shape.hidden)
    if attention == "packed":
        model = expand(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (found,) = session.run(None, {name: given[name] for name in shape.inputs})
    reference, rows = (
        Reference(shape, weights),
        zip(given["input_ids"], given["token_type_ids"], LENGTHS, strict=True),
    )
    right = [reference(ids[:length], types[:length]) for ids, types, length in rows]
    if output == "first":
        return found, np.stack([row[0] for row in right])
    return found[mask > 0], np.concatenate(right)


@pytest.mark.parametrize("output", ["tokens", "first"])
@pytest.mark.parametrize("attention", ["gathered", "plain", "heads", "ranges", "packed"])
@pytest.mark.parametrize("name", SHAPES)
def test_layers_compute_what_their_description_says(
    name: str, attention: Attention, output: str
) -> None:
    if SHAPES[name].causal and attention == "packed":
        with pytest.raises(WeightsError, match="`packed`"):
            run(SHAPES[name], attention, output)
        return

    found, right = run(SHAPES[name], attention, output)

    np.testing.assert_allclose(found, right, atol=2e-5 * np.abs(right).max())
