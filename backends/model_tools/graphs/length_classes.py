"""Writes attention of rows in classes of like lengths, each on a grid of its own width.

On one grid the shortest row is as wide as the longest. Here a row's width follows from its own
length, so that it costs what it is, and its bits do not depend on the lengths of rows beside it.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from onnx import TensorProto

from backends.model_tools.graphs.graph_builder import GraphBuilder

# The widths of all classes but the last, which is as wide as the longest row. They suit sentences;
# each takes some six small nodes a layer, whether it has rows or not.
WIDTHS = (12, 20)


class _LengthGrid(msgspec.Struct, frozen=True, kw_only=True):
    """Names the tensors of one class.

    `rows` [rows of the class] are their numbers, `lengths` their tokens, `widths` that of the class
    for each of them, `filled` [rows of the class, width] the number of the token at each place.
    """

    rows: str
    lengths: str
    widths: str
    filled: str


class LengthGrids:
    """Names the tensors that lay out rows by classes of lengths.

    The tokens of all rows stand below each other, `[tokens, hidden]`, in the order of the rows.
    """

    def __init__(self, graph: GraphBuilder, *, mask: str, lengths: str, places: str) -> None:
        """Add the nodes that read `mask`, int32 [batch, sequence].

        `lengths` [batch] is the number of tokens in each row, `places` [tokens, 2] the row and
        position of each token.
        """
        self._graph = graph
        self._flat = graph.constant("class.flat", np.array([-1], dtype=np.int64))
        self._one = graph.constant("class.one", np.array(1, dtype=np.int32))
        self._zero = graph.constant("class.zero", np.array(0, dtype=np.int32))
        self._first = graph.constant("class.first", np.array(0, dtype=np.int64))
        self._column = graph.constant("class.column", np.array([1], dtype=np.int64))
        self._lengths = lengths
        graph.plain("CumSum", [lengths, self._first], "class.ends")
        graph.plain("Sub", ["class.ends", lengths], "class.starts")
        self._classes = [self._add_class(number, mask) for number in range(len(WIDTHS) + 1)]
        self._places = self._add_places(places)

    def attend(self, prefix: str, inputs: Sequence[str], *, heads: int, mask_value: float) -> str:
        """Add attention on query, key and value [tokens, hidden]; returns the context, as large.

        `mask_value` is what is added to the scores of free places, which repeat a row's last token.
        """
        graph, parts = self._graph, []
        sizes = f"{prefix}.sizes"
        graph.plain("Shape", [inputs[0]], f"{prefix}.size", start=1, end=2)
        graph.plain("Concat", [self._flat, f"{prefix}.size"], sizes, axis=0)
        for number, each in enumerate(self._classes):
            rows = [
                graph.plain("Gather", [name, each.filled], f"{name}.{number}") for name in inputs
            ]
            grid = graph.fused(
                "MultiHeadAttention",
                [*rows, "", each.lengths],
                f"{prefix}.{number}.grid",
                num_heads=heads,
                mask_filter_value=mask_value,
            )
            parts.append(graph.plain("Reshape", [grid, sizes], f"{prefix}.{number}"))
        graph.plain("Concat", parts, f"{prefix}.classes", axis=0)
        return graph.plain("Gather", [f"{prefix}.classes", self._places], prefix)

    def _add_class(self, number: int, mask: str) -> _LengthGrid:
        graph, prefix = self._graph, f"class.{number}"
        rows = graph.plain("Reshape", [self._find(number), self._flat], f"{prefix}.rows")
        lengths = graph.plain("Gather", [self._lengths, rows], f"{prefix}.lengths")
        graph.plain("Gather", ["class.starts", rows], f"{prefix}.starts")
        width = self._width(number, mask)
        graph.plain("Range", [self._zero, width, self._one], f"{prefix}.line")
        graph.plain("Sub", [lengths, self._one], f"{prefix}.highest")
        # A row without tokens has the place before it, and the first row none before it.
        graph.plain("Unsqueeze", [f"{prefix}.highest", self._column], f"{prefix}.last")
        graph.plain("Unsqueeze", [f"{prefix}.starts", self._column], f"{prefix}.start")
        graph.plain("Min", [f"{prefix}.line", f"{prefix}.last"], f"{prefix}.offset")
        graph.plain("Add", [f"{prefix}.start", f"{prefix}.offset"], f"{prefix}.place")
        filled = graph.plain("Max", [f"{prefix}.place", self._zero], f"{prefix}.filled")
        graph.plain("Mul", [lengths, self._zero], f"{prefix}.zeros")
        widths = graph.plain("Add", [f"{prefix}.zeros", width], f"{prefix}.widths")
        return _LengthGrid(rows=rows, lengths=lengths, widths=widths, filled=filled)

    def _find(self, number: int) -> str:
        """Add the numbers of the rows of a class: `[1, rows of the class]`."""
        graph, prefix = self._graph, f"class.{number}"
        conditions = []
        if number > 0:
            below = f"class.{number - 1}.width"
            conditions.append(graph.plain("Greater", [self._lengths, below], f"{prefix}.over"))
        if number < len(WIDTHS):
            width = graph.constant(f"{prefix}.width", np.array(WIDTHS[number], dtype=np.int32))
            conditions.append(
                graph.plain("LessOrEqual", [self._lengths, width], f"{prefix}.within")
            )
        belongs = conditions[0]
        if len(conditions) > 1:
            belongs = graph.plain("And", conditions, f"{prefix}.belongs")
        return graph.plain("NonZero", [belongs], f"{prefix}.found")

    def _width(self, number: int, mask: str) -> str:
        """Add the width of a class, of which that of the last is the sequence's."""
        graph, prefix = self._graph, f"class.{number}"
        if number < len(WIDTHS):
            return f"{prefix}.width"
        graph.plain("Shape", [mask], f"{prefix}.shape", start=1, end=2)
        graph.plain("Squeeze", [f"{prefix}.shape"], f"{prefix}.sequence")
        return graph.plain("Cast", [f"{prefix}.sequence"], f"{prefix}.width", to=TensorProto.INT32)

    def _add_places(self, places: str) -> str:
        """Add the place of each token among those of all classes below each other: `[tokens]`."""
        graph = self._graph
        order = graph.plain("Concat", [each.rows for each in self._classes], "class.order", axis=0)
        widths = [each.widths for each in self._classes]
        graph.plain("Concat", widths, "class.widths", axis=0)
        graph.plain("CumSum", ["class.widths", self._first], "class.above", exclusive=1)
        graph.plain("ScatterElements", [self._lengths, order, "class.above"], "class.tops", axis=0)
        second = graph.constant("class.second", np.array(1, dtype=np.int64))
        graph.plain("Gather", [places, self._first], "class.token.row", axis=1)
        graph.plain("Gather", [places, second], "class.token.position", axis=1)
        graph.plain("Cast", ["class.token.position"], "class.token.offset", to=TensorProto.INT32)
        graph.plain("Gather", ["class.tops", "class.token.row"], "class.token.top")
        return graph.plain("Add", ["class.token.top", "class.token.offset"], "class.token.place")
