"""Builds a DeBERTa-v2 (or v3) encoder as an ONNX graph, without torch.

Attention is disentangled (He et al. 2021, arXiv:2006.03654): to the product of contents come those
of content with relative position, both ways. What of them depends on weights alone, the positions
seen by each layer, is computed while the graph is built.

Inputs and outputs are those of `backends.model_tools.graphs.bert`; `token_type_ids` only where the
model has them. fp32 only.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from backends.model_tools.graphs.bert import TOKENS
from backends.model_tools.graphs.families import strip_prefix
from backends.model_tools.graphs.parts import FUSED, Parts
from backends.model_tools.graphs.weights import Weights, WeightsError

_OPSETS = {"": 20, FUSED: 1}
_IR_VERSION = 10
_LOWEST = float(np.finfo(np.float32).min)


class DebertaShape(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the size of a DeBERTa-v2 encoder, by the names of its `config.json`."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    max_position_embeddings: int
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-7
    relative_attention: bool = False
    max_relative_positions: int = -1
    position_buckets: int = -1
    position_biased_input: bool = True
    pos_att_type: list[str] | str | None = None
    share_att_key: bool = False
    norm_rel_ebd: str = "none"
    hidden_act: str = "gelu"
    conv_kernel_size: int = 0
    embedding_size: int | None = None

    @property
    def attended(self) -> tuple[str, ...]:
        """Which products with positions are part of the attention: `c2p`, `p2c`."""
        if not self.relative_attention:
            return ()
        named = self.pos_att_type or []
        parts = named.split("|") if isinstance(named, str) else named
        return tuple(part.strip() for part in parts)

    @property
    def farthest(self) -> int:
        """The largest distance told apart from those beyond it."""
        relative = self.max_relative_positions
        return relative if relative > 0 else self.max_position_embeddings

    @property
    def span(self) -> int:
        """How many distances there are each way."""
        return self.position_buckets if self.position_buckets > 0 else self.farthest


def build_deberta(config: Mapping[str, Any], weights: Weights) -> ModelProto:
    """Return the encoder of a `DebertaV2` checkpoint, with the output `tokens`.

    Raises:
        WeightsError: a weight is missing, or the configuration asks for what is not computed.
    """
    try:
        shape = msgspec.convert(config, DebertaShape)
    except msgspec.ValidationError as error:
        raise WeightsError(f"`config.json`: {error}") from None
    if shape.hidden_act != "gelu" or shape.conv_kernel_size > 0:
        raise WeightsError("`hidden_act` must be `gelu` and there must be no convolution")
    if shape.embedding_size not in (None, shape.hidden_size):
        raise WeightsError("`embedding_size` must be `hidden_size`")
    parts = Parts(strip_prefix(weights, "deberta."), "fp32")
    try:
        _Writer(shape, parts).write()
    except KeyError as error:
        raise WeightsError(f"the weight {error} is missing") from None
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (shape.type_vocab_size > 0)
    rows = ["batch", "sequence"]
    graph = helper.make_graph(
        parts.nodes,
        "deberta",
        [helper.make_tensor_value_info(name, TensorProto.INT32, rows) for name in names],
        [helper.make_tensor_value_info(TOKENS, TensorProto.FLOAT, [*rows, shape.hidden_size])],
        parts.initializers,
    )
    return helper.make_model(
        graph,
        producer_name="sluicegate",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid(name, version) for name, version in _OPSETS.items()],
    )


def bucket_distances(distances: NDArray[np.int64], *, buckets: int, farthest: int) -> Any:
    """Return the bucket of each distance: near ones exact, farther ones in logarithmic steps."""
    middle = buckets // 2
    size = np.where(np.abs(distances) < middle, middle - 1, np.abs(distances)).astype(np.float32)
    scale = np.log(np.float32((farthest - 1) / middle))
    steps = np.ceil(np.log(size / np.float32(middle)) / scale * np.float32(middle - 1)) + middle
    return np.where(size <= middle, distances, steps * np.sign(distances)).astype(np.int64)


class _Writer:
    """Writes the parts of one encoder, in their order."""

    def __init__(self, shape: DebertaShape, parts: Parts) -> None:
        self._shape = shape
        self._parts = parts
        self._width = shape.hidden_size // shape.num_attention_heads
        # Contents count once, and once more each way that positions do.
        self._scale = math.sqrt(self._width * (1 + len(shape.attended)))

    def write(self) -> None:
        self._write_masks()
        state = self._embed()
        positions = self._positions()
        for layer in range(self._shape.num_hidden_layers):
            last = layer == self._shape.num_hidden_layers - 1
            state = self._encode(layer, state, positions, TOKENS if last else f"state.{layer}")

    def _write_masks(self) -> None:
        """Add `real`, which keys are tokens, and the shapes that attention needs."""
        parts, shape = self._parts, self._shape
        axes = parts.constant("mask.axes", np.array([1, 2], dtype=np.int64))
        parts.plain("Cast", ["attention_mask"], "mask.bool", to=TensorProto.BOOL)
        parts.plain("Unsqueeze", ["mask.bool", axes], "real")
        parts.constant("lowest", np.array(_LOWEST, dtype=np.float32))
        heads = [0, 0, shape.num_attention_heads, self._width]
        parts.constant("heads", np.array(heads, dtype=np.int64))
        parts.constant("joined", np.array([0, 0, shape.hidden_size], dtype=np.int64))
        if shape.attended or shape.position_biased_input:
            parts.plain("Shape", ["input_ids"], "length.vector", start=1, end=2)
            scalar = parts.constant("length.scalar", np.array([], dtype=np.int64))
            parts.plain("Reshape", ["length.vector", scalar], "length")
            zero = parts.constant("zero", np.array(0, dtype=np.int64))
            one = parts.constant("one", np.array(1, dtype=np.int64))
            parts.plain("Range", [zero, "length", one], "places")
        if shape.attended:
            self._write_distances()

    def _write_distances(self) -> None:
        """Add `near.c2p` and `near.p2c`: which relative position each pair of tokens has."""
        parts, shape = self._parts, self._shape
        reach = shape.max_position_embeddings - 1
        distances = np.arange(-reach, reach + 1, dtype=np.int64)
        buckets = distances
        if shape.position_buckets > 0:
            buckets = bucket_distances(
                distances, buckets=shape.position_buckets, farthest=shape.farthest
            )
        across = parts.constant("distance.across", np.array([1], dtype=np.int64))
        parts.plain("Unsqueeze", ["places", across], "distance.rows")
        parts.plain("Sub", ["distance.rows", "places"], "distance.signed")
        centre = parts.constant("distance.centre", np.array(reach, dtype=np.int64))
        parts.plain("Add", ["distance.signed", centre], "distance")
        rows = parts.plain("Shape", ["input_ids"], "distance.batch", start=0, end=1)
        heads = parts.constant("distance.heads", np.array([shape.num_attention_heads]))
        size = [rows, heads, "length.vector", "length.vector"]
        parts.plain("Concat", size, "distance.size", axis=0)
        for name, sign in (("c2p", 1), ("p2c", -1)):
            table = np.clip(sign * buckets + shape.span, 0, 2 * shape.span - 1)
            # One more than there are distances: weights packed behind it in a file stay aligned.
            table = np.append(table, 0)
            parts.constant(f"near.{name}.table", table)
            parts.plain("Gather", [f"near.{name}.table", "distance"], f"near.{name}.square")
            parts.plain("Expand", [f"near.{name}.square", "distance.size"], f"near.{name}")

    def _embed(self) -> str:
        parts, shape, prefix = self._parts, self._shape, "embeddings"
        table = parts.weight(f"{prefix}.word_embeddings.weight")
        state = parts.plain("Gather", [table, "input_ids"], "embedded.words")
        if shape.position_biased_input:
            table = parts.weight(f"{prefix}.position_embeddings.weight")
            places = parts.plain("Gather", [table, "places"], "embedded.places")
            state = parts.plain("Add", [state, places], "embedded.placed")
        if shape.type_vocab_size > 0:
            table = parts.weight(f"{prefix}.token_type_embeddings.weight")
            types = parts.plain("Gather", [table, "token_type_ids"], "embedded.types")
            state = parts.plain("Add", [state, types], "embedded.typed")
        return self._norm(f"{prefix}.LayerNorm", state, "embedded")

    def _positions(self) -> NDArray[np.float32] | None:
        """Return the vectors of the relative positions: `[2 * span, hidden]`."""
        if not self._shape.attended:
            return None
        weights = self._parts.weights
        table = weights["encoder.rel_embeddings.weight"][: 2 * self._shape.span]
        if "layer_norm" in self._shape.norm_rel_ebd:
            exact = table.astype(np.float64)
            centred = exact - exact.mean(axis=1, keepdims=True)
            variance = (centred**2).mean(axis=1, keepdims=True)
            exact = centred / np.sqrt(variance + self._shape.layer_norm_eps)
            exact = exact * weights["encoder.LayerNorm.weight"] + weights["encoder.LayerNorm.bias"]
            table = exact.astype(np.float32)
        return table

    def _encode(
        self, layer: int, state: str, positions: NDArray[np.float32] | None, output: str
    ) -> str:
        """Add one layer: attention, then feed-forward, each added to its input and normalised."""
        parts, prefix = self._parts, f"encoder.layer.{layer}"
        context = self._attend(f"{prefix}.attention.self", state, positions)
        attended = f"{prefix}.attention.output"
        state = self._dense_add_norm(attended, context, state, output=attended)
        inner = parts.matmul(f"{prefix}.intermediate.dense", state)
        bias = parts.weight(f"{prefix}.intermediate.dense.bias")
        wide = parts.fused("BiasGelu", [inner, bias], f"{prefix}.intermediate")
        return self._dense_add_norm(f"{prefix}.output", wide, state, output=output)

    def _attend(self, prefix: str, state: str, positions: NDArray[np.float32] | None) -> str:
        parts = self._parts
        query = self._project(f"{prefix}.query_proj", state, (0, 2, 1, 3))
        key = self._project(f"{prefix}.key_proj", state, (0, 2, 1, 3))
        value = self._project(f"{prefix}.value_proj", state, (0, 2, 1, 3))
        turned = parts.plain("Transpose", [key], f"{prefix}.turned", perm=[0, 1, 3, 2])
        scale = parts.constant(f"{prefix}.scale", np.array(1 / self._scale, dtype=np.float32))
        parts.plain("MatMul", [query, turned], f"{prefix}.products")
        scores = parts.plain("Mul", [f"{prefix}.products", scale], f"{prefix}.contents")
        if positions is not None and "c2p" in self._shape.attended:
            near = self._near(prefix, "c2p", query, positions)
            scores = parts.plain("Add", [scores, near], f"{prefix}.with_c2p")
        if positions is not None and "p2c" in self._shape.attended:
            near = self._near(prefix, "p2c", key, positions)
            near = parts.plain("Transpose", [near], f"{prefix}.p2c", perm=[0, 1, 3, 2])
            scores = parts.plain("Add", [scores, near], f"{prefix}.with_p2c")
        parts.plain("Where", ["real", scores, "lowest"], f"{prefix}.scores")
        parts.plain("Softmax", [f"{prefix}.scores"], f"{prefix}.shares", axis=-1)
        parts.plain("MatMul", [f"{prefix}.shares", value], f"{prefix}.heads")
        parts.plain("Transpose", [f"{prefix}.heads"], f"{prefix}.rows", perm=[0, 2, 1, 3])
        return parts.plain("Reshape", [f"{prefix}.rows", "joined"], f"{prefix}.context")

    def _project(self, prefix: str, state: str, order: tuple[int, ...]) -> str:
        """Add a product with its bias, split into heads: `[batch, heads, sequence, width]`."""
        parts = self._parts
        product = parts.matmul(prefix, state)
        biased = parts.plain("Add", [product, parts.weight(f"{prefix}.bias")], f"{prefix}.biased")
        split = parts.plain("Reshape", [biased, "heads"], f"{prefix}.split")
        return parts.plain("Transpose", [split], f"{prefix}.heads", perm=list(order))

    def _near(self, prefix: str, way: str, state: str, positions: NDArray[np.float32]) -> str:
        """Add the products of `state` with the relative position of each other token."""
        parts, shape = self._parts, self._shape
        own = {"c2p": "pos_key_proj", "p2c": "pos_query_proj"}[way]
        shared = {"c2p": "key_proj", "p2c": "query_proj"}[way]
        name = f"{prefix}.{shared if shape.share_att_key else own}"
        seen = positions @ parts.weights[f"{name}.weight"].T + parts.weights[f"{name}.bias"]
        seen = seen.reshape(-1, shape.num_attention_heads, self._width).transpose(1, 2, 0)
        scaled = (seen / np.float32(self._scale)).astype(np.float32)
        table = parts.floats(f"{prefix}.{way}.positions", scaled)
        parts.plain("MatMul", [state, table], f"{prefix}.{way}.all")
        return parts.plain(
            "GatherElements", [f"{prefix}.{way}.all", f"near.{way}"], f"{prefix}.{way}.near", axis=3
        )

    def _dense_add_norm(self, prefix: str, inputs: str, residual: str, *, output: str) -> str:
        parts = self._parts
        product = parts.matmul(f"{prefix}.dense", inputs)
        bias = parts.weight(f"{prefix}.dense.bias")
        biased = parts.plain("Add", [product, bias], f"{prefix}.dense.biased")
        summed = parts.plain("Add", [biased, residual], f"{prefix}.sum")
        return self._norm(f"{prefix}.LayerNorm", summed, output)

    def _norm(self, prefix: str, state: str, output: str) -> str:
        epsilon = self._shape.layer_norm_eps
        inputs = [state, *self._parts.norm(prefix)]
        return self._parts.plain("LayerNormalization", inputs, output, epsilon=epsilon)
