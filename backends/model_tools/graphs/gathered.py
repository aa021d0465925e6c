"""Writes encoder layers that compute real tokens only, from operators that a CPU has.

The tokens of all rows stand below each other, `[tokens, hidden]`, without padding. Attention wants
rows of one length, so query, key and value are laid out on a grid, `[batch, sequence, hidden]`,
whose free places repeat the last token of their row.
"""

import numpy as np
from onnx import TensorProto

from backends.model_tools.graphs.parts import Parts

# What is added to the score of a free place. It repeats a real token of its row, so its weight is
# at most e^-40 of the row's largest, which is lost in rounding. ONNX Runtime's own value, -10000,
# makes weights that are denormal numbers: attention takes twice as long with them.
_FREE = -40.0


class Grid:
    """Names the tensors that hold the places of tokens.

    `places` [tokens, 2] is the row and position of each token, `filled` [batch, sequence] the
    number of the token at each place, `lengths` [batch] the number of tokens in each row.
    """

    def __init__(self, parts: Parts, mask: str) -> None:
        """Add the nodes that read `mask`, int32 [batch, sequence], padded on the right."""
        self._parts = parts
        line = parts.constant("grid.line", np.array([-1], dtype=np.int64))
        first = parts.constant("grid.first", np.array(0, dtype=np.int64))
        second = parts.constant("grid.second", np.array([1], dtype=np.int64))
        one = parts.constant("grid.one", np.array(1, dtype=np.int32))
        zero = parts.constant("grid.zero", np.array(0, dtype=np.int32))
        parts.plain("NonZero", [mask], "grid.found")
        self.places = parts.plain("Transpose", ["grid.found"], "grid.places")
        self.lengths = parts.plain("ReduceSum", [mask, second], "grid.lengths", keepdims=0)
        parts.plain("Reshape", [mask, line], "grid.flat")
        parts.plain("CumSum", ["grid.flat", first], "grid.counted")
        parts.plain("Sub", ["grid.counted", one], "grid.last")
        # An empty first row has no token before it.
        parts.plain("Max", ["grid.last", zero], "grid.token")
        parts.plain("Shape", [mask], "grid.shape")
        self.filled = parts.plain("Reshape", ["grid.token", "grid.shape"], "grid.filled")

    def take(self, padded: str, output: str) -> str:
        """Add the tokens of `padded` [batch, sequence, ...]: `[tokens, ...]`."""
        return self._parts.plain("GatherND", [padded, self.places], output)

    def fill(self, tokens: str, output: str) -> str:
        """Add the grid of `tokens` [tokens, hidden]: `[batch, sequence, hidden]`."""
        return self._parts.plain("Gather", [tokens, self.filled], output)

    def positions(self) -> str:
        """Add the position of every token in its row: int32 [tokens]."""
        column = self._parts.constant("grid.column", np.array(1, dtype=np.int64))
        columns = self._parts.plain("Gather", [self.places, column], "grid.columns", axis=1)
        return self._parts.plain("Cast", [columns], "grid.positions", to=TensorProto.INT32)


def embed_tokens(parts: Parts, grid: Grid, *, epsilon: float) -> str:
    """Add the embeddings of the real tokens: `[tokens, hidden]`."""
    prefix = "embeddings"
    row = parts.constant("grid.row", np.array([0], dtype=np.int64))
    tokens = (
        grid.take("input_ids", "input_ids.real"),
        grid.take("token_type_ids", "token_type_ids.real"),
        grid.positions(),
    )
    # The kernel takes rows: here one, of all tokens, whose positions are told.
    ids, kinds, positions = (
        parts.plain("Unsqueeze", [name, row], f"{name}.row") for name in tokens
    )
    tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    weights = [parts.weight(f"{prefix}.{table}.weight") for table in tables]
    inputs = [ids, kinds, *weights, *parts.norm(f"{prefix}.LayerNorm"), "", positions]
    outputs = (f"{prefix}.row", "")
    state = parts.fused("EmbedLayerNormalization", inputs, *outputs, epsilon=epsilon)
    return parts.plain("Squeeze", [state, row], prefix)


def attend_gathered(parts: Parts, prefix: str, state: str, *, heads: int, grid: Grid) -> str:
    """Add the attention of one layer on `state` [tokens, hidden]; returns the context, as large."""
    inputs = [
        _project(parts, f"{prefix}.{name}", state, grid) for name in ("query", "key", "value")
    ]
    context = parts.fused(
        "MultiHeadAttention",
        [*inputs, "", grid.lengths],
        f"{prefix}.grid",
        num_heads=heads,
        mask_filter_value=_FREE,
    )
    return grid.take(context, prefix)


def _project(parts: Parts, prefix: str, state: str, grid: Grid) -> str:
    product = parts.matmul(prefix, state)
    biased = parts.plain("Add", [product, parts.weight(f"{prefix}.bias")], f"{prefix}.biased")
    return grid.fill(biased, f"{prefix}.grid")
