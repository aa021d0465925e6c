"""The BERT encoder for CPUs, whose linear layers run over real tokens only.

Inputs, outputs and answers are those of `build_bert`. Padding is dropped after the embeddings and
put back for attention alone, which is a small part of the work: a batch of rows of 4 to 24 tokens
takes two thirds of the time, one without padding the same. `NonZero` makes shapes depend on
values, which CUDA graphs cannot have; on a GPU use `build_bert`.
"""

import numpy as np
from onnx import ModelProto, TensorProto
from typing_extensions import override

from backends.graphs.bert import TOKENS, BertGraph, assemble
from backends.graphs.shapes import BertShape
from backends.graphs.weights import Weights, check_weights

# Where the real tokens are in [batch * sequence], and for each place there the token that fills it.
_REAL, _FILL = "real_tokens", "fill"
_PARTS = ("query", "key", "value")


def build_packed_bert(shape: BertShape, weights: Weights) -> ModelProto:
    """Return the encoder of `shape` with `weights`; equal arguments give equal bytes.

    Raises:
        WeightsError: the weights are not those of the shape.
    """
    check_weights(shape, weights)
    return assemble(shape, _PackedGraph(shape, weights))


class _PackedGraph(BertGraph):
    """States are [real tokens, hidden] from the embeddings to the pooling."""

    last_state = "packed"

    @override
    def embed(self) -> str:
        embeddings = super().embed()
        hidden = np.array([-1, self.shape.hidden], dtype=np.int64)
        flat = self.initializer("flat", np.array([-1], dtype=np.int64))
        zero = self.initializer("zero", np.array(0, dtype=np.int64))
        self.plain("Reshape", ["attention_mask", flat], "flat_mask")
        self.plain("NonZero", ["flat_mask"], "real_places")
        self.plain("Reshape", ["real_places", flat], _REAL)
        # A place of padding is filled with the last token of its own row, which attention then
        # leaves out: what is not finite in one row cannot reach another.
        self.plain("Cast", ["flat_mask"], "flat_real", to=TensorProto.INT64)
        self.plain("CumSum", ["flat_real", zero], "counted")
        self.plain("Sub", ["counted", self.initializer("one", np.array(1, np.int64))], "before")
        self.plain("Max", ["before", zero], "filled")
        self.plain("Shape", ["input_ids"], "padded_shape")
        self.plain("Reshape", ["filled", "padded_shape"], _FILL)
        self.plain("Reshape", [embeddings, self.initializer("lines", hidden)], "padded_embeddings")
        return self.plain("Gather", ["padded_embeddings", _REAL], "packed_embeddings")

    @override
    def attention(self, prefix: str, state: str) -> str:
        padded = []
        for part in _PARTS:
            product = self.matmul(f"{prefix}.{part}", state)
            padded.append(self.plain("Gather", [product, _FILL], f"{prefix}.{part}.padded"))
        biases = np.concatenate([self.weights[f"{prefix}.{part}.bias"] for part in _PARTS])
        bias = self.initializer(f"{prefix}.bias", biases)
        context = self.fused(
            "MultiHeadAttention",
            [*padded, bias, "lengths"],
            [prefix],
            num_heads=self.shape.heads,
        )
        lines = self.plain("Reshape", [context, "lines"], f"{prefix}.lines")
        return self.plain("Gather", [lines, _REAL], f"{prefix}.packed")

    @override
    def pool(self, state: str) -> None:
        super().pool(self.plain("Gather", [state, _FILL], TOKENS))
