"""Builds a BERT encoder as an ONNX graph of ONNX Runtime's fused operators, without torch.

Inputs, int32 [batch, sequence]: `input_ids`, `attention_mask`, `token_type_ids`. Rows must be
padded on the right: attention takes the number of real tokens, not the mask.
Outputs, float32: `pooled` [batch, hidden], the mean over the real tokens, not normalised, and
`tokens` [batch, sequence, hidden], the last hidden state (of no meaning at padding).

Measured on a CPU: `BiasGelu`, `Add` + `Gelu` and attention by mask or by mask index cost the same
and give the same bits; `FastGelu` is 1 % faster and wrong in the third decimal, so it is not used.
`SkipLayerNormalization` takes six times as long there as the `Add` and `LayerNormalization` written
here, which ONNX Runtime fuses to it on a GPU, where it is the faster one.
"""

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper

from backends.model_tools.graphs.attention import Masking, add_ranges, attend
from backends.model_tools.graphs.form import GraphForm, Precision
from backends.model_tools.graphs.gathered import Grid, attend_gathered, embed_tokens
from backends.model_tools.graphs.parts import FUSED, TYPES, Parts
from backends.model_tools.graphs.shapes import BertShape
from backends.model_tools.graphs.weights import Weights, WeightsError, check_weights

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
POOLED, TOKENS = "pooled", "tokens"

_OPSETS = {"": 20, FUSED: 1}
_IR_VERSION = 10


def build_bert(shape: BertShape, weights: Weights, form: GraphForm | None = None) -> ModelProto:
    """Return the encoder of `shape` with `weights`; equal arguments give equal bytes.

    Raises:
        WeightsError: the weights are not those of the shape, or not for this form.
    """
    form = form or GraphForm()
    check_weights(shape, weights)
    if (problem := form.problem()) is not None:
        raise WeightsError(problem)
    parts = Parts(weights, form.precision)
    _Writer(shape, form, parts).write()
    return helper.make_model(
        _proto(shape, form, parts),
        producer_name="sluicegate",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid(name, version) for name, version in _OPSETS.items()],
    )


def _proto(shape: BertShape, form: GraphForm, parts: Parts) -> GraphProto:
    rows: list[int | str | None] = ["batch", "sequence"]
    sizes: dict[str, list[int | str | None]] = {
        POOLED: ["batch", shape.hidden],
        TOKENS: [*rows, shape.hidden],
    }
    return helper.make_graph(
        parts.nodes,
        "bert",
        [helper.make_tensor_value_info(name, TensorProto.INT32, rows) for name in INPUTS],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, size)
            for name, size in sizes.items()
            if name in form.outputs
        ],
        parts.initializers,
    )


class _Writer:
    """Writes the parts of one encoder, in their order."""

    def __init__(self, shape: BertShape, form: GraphForm, parts: Parts) -> None:
        self._shape = shape
        self._form = form
        self._parts = parts

    def write(self) -> None:
        if self._form.attention == "gathered":
            self._write_gathered()
        else:
            self._write_rows()
        if POOLED in self._form.outputs:
            self._pool(TOKENS)

    def _write_gathered(self) -> None:
        parts = self._parts
        grid = Grid(parts, "attention_mask")
        state = embed_tokens(parts, grid, epsilon=self._shape.layer_norm_epsilon)
        for layer in range(self._shape.layers):
            prefix = f"encoder.layer.{layer}"
            attention = f"{prefix}.attention.self"
            context = attend_gathered(parts, attention, state, heads=self._shape.heads, grid=grid)
            state = self._feed(prefix, context, state, output=f"state.{layer}")
        grid.fill(state, TOKENS)

    def _write_rows(self) -> None:
        state = self._embed()
        masking = Masking(mask="lengths")
        if self._form.attention == "ranges":
            ranges = add_ranges(self._parts, mask="attention_mask", lengths="lengths")
            masking = Masking(mask=ranges)
        if self._form.packed:
            state, masking = self._pack(state)
        exact = self._form.precision == "fp32" and not self._form.packed
        for layer in range(self._shape.layers):
            last = layer == self._shape.layers - 1
            output = TOKENS if last and exact else f"state.{layer}"
            state = self._encode(layer, state, masking, output=output)
        if not exact:
            self._finish(state, masking)

    def _embed(self) -> str:
        """Add the embeddings; also makes `lengths`, the number of real tokens per row."""
        prefix, parts = "embeddings", self._parts
        # No kernel embeds in bf16.
        precision: Precision = "fp32" if self._form.precision == "bf16" else self._form.precision
        tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        inputs = [
            "input_ids",
            "token_type_ids",
            *(parts.weight(f"{prefix}.{table}.weight", precision) for table in tables),
            *parts.norm(f"{prefix}.LayerNorm", precision),
            "attention_mask",
        ]
        state = parts.fused(
            "EmbedLayerNormalization",
            inputs,
            prefix,
            "lengths",
            epsilon=self._shape.layer_norm_epsilon,
        )
        if precision == self._form.precision:
            return state
        return parts.plain("Cast", [state], f"{prefix}.cast", to=TYPES[self._form.precision])

    def _pack(self, state: str) -> tuple[str, Masking]:
        """Leave the padding out: `[real tokens, hidden]` from here on."""
        masking = Masking(places="places", ends="ends")
        outputs = ("packed", masking.places, masking.ends, "longest")
        packed = self._parts.fused("RemovePadding", [state, "lengths"], *outputs)
        return packed, masking

    def _encode(self, layer: int, state: str, masking: Masking, *, output: str) -> str:
        """Add one layer: attention, then feed-forward, each added to its input and normalised."""
        parts, prefix = self._parts, f"encoder.layer.{layer}"
        context = attend(
            parts,
            self._form.attention,
            f"{prefix}.attention.self",
            state,
            heads=self._shape.heads,
            masking=masking,
        )
        return self._feed(prefix, context, state, output=output)

    def _feed(self, prefix: str, context: str, state: str, *, output: str) -> str:
        """Add what follows attention in a layer; `context` is what it gave for `state`."""
        parts = self._parts
        attended = f"{prefix}.attention.output"
        state = self._dense_add_norm(attended, context, state, output=attended)
        inner = parts.matmul(f"{prefix}.intermediate.dense", state)
        bias = parts.weight(f"{prefix}.intermediate.dense.bias")
        wide = parts.fused("BiasGelu", [inner, bias], f"{prefix}.intermediate")
        return self._dense_add_norm(f"{prefix}.output", wide, state, output=output)

    def _dense_add_norm(self, prefix: str, inputs: str, residual: str, *, output: str) -> str:
        parts = self._parts
        product = parts.matmul(f"{prefix}.dense", inputs)
        bias = parts.weight(f"{prefix}.dense.bias")
        biased = parts.plain("Add", [product, bias], f"{prefix}.dense.biased")
        summed = parts.plain("Add", [biased, residual], f"{prefix}.sum")
        return parts.plain(
            "LayerNormalization",
            [summed, *parts.norm(f"{prefix}.LayerNorm")],
            output,
            epsilon=self._shape.layer_norm_epsilon,
        )

    def _finish(self, state: str, masking: Masking) -> None:
        """Make `tokens` of what the last layer gave: padding back in its place, and float32."""
        parts = self._parts
        exact = self._form.precision == "fp32"
        if self._form.packed:
            restored = TOKENS if exact else "restored"
            state = parts.fused("RestorePadding", [state, masking.places], restored)
        if not exact:
            parts.plain("Cast", [state], TOKENS, to=TensorProto.FLOAT)

    def _pool(self, state: str) -> None:
        """Add the mean of `state` over the real tokens of a row."""
        parts = self._parts
        axis = parts.constant("axis", np.array([1], dtype=np.int64))
        # An empty row pools to zeros, not to NaN.
        least = parts.constant("least", np.array(1, dtype=np.float32))
        parts.plain("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
        parts.plain("Unsqueeze", ["mask", axis], "selector")
        parts.plain("MatMul", ["selector", state], "sums")
        parts.plain("Squeeze", ["sums", axis], "sum")
        parts.plain("ReduceSum", ["mask", axis], "real", keepdims=1)
        parts.plain("Max", ["real", least], "count")
        parts.plain("Div", ["sum", "count"], POOLED)
