"""Writes attention for rows that are grouped by length.

Rows of similar length form a class. Each class is padded to its own width, so a short row is cheap.
If all rows were padded to the same width, a short row would cost as much as the longest row, and
the bits of its output would depend on the longest row.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from onnx import TensorProto

from backends.model_tools.graphs.graph_builder import GraphBuilder

# The widths of all classes except the last one, which is as wide as the longest row. These widths
# suit sentences. Each class adds about six small nodes to a layer, even if it has no rows.
WIDTHS = (12, 20)


class _LengthGrid(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the names of the tensors of one class.

    `rows` are the indices of the class's rows, `lengths` the numbers of tokens in them, and
    `widths` repeats the width of the class for each row. `filled` `[rows of the class, width]` is
    the index of the token at each place.
    """

    rows: str
    lengths: str
    widths: str
    filled: str


class LengthGrids:
    """Holds the names of the tensors that lay out rows on grids.

    Rows of similar length form a class, and each class has its own grid. States are `[tokens,
    hidden]`: the tokens of all rows, one row after another.
    """

    def __init__(self, graph: GraphBuilder, *, mask: str, lengths: str, places: str) -> None:
        """Append the nodes that read `mask`, int32 `[batch, sequence]`.

        `lengths` `[batch]` is the number of tokens in each row. `places` `[tokens, 2]` is the row
        and position of each token.
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
        """Append attention on query, key and value `[tokens, hidden]`.

        Return the name of the output, which has the same shape.

        `mask_value` is added to the scores of free places, which repeat a row's last token.
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
        # An empty row gets the index of the token before it, which is -1 for the first row.
        graph.plain("Unsqueeze", [f"{prefix}.highest", self._column], f"{prefix}.last")
        graph.plain("Unsqueeze", [f"{prefix}.starts", self._column], f"{prefix}.start")
        graph.plain("Min", [f"{prefix}.line", f"{prefix}.last"], f"{prefix}.offset")
        graph.plain("Add", [f"{prefix}.start", f"{prefix}.offset"], f"{prefix}.place")
        filled = graph.plain("Max", [f"{prefix}.place", self._zero], f"{prefix}.filled")
        graph.plain("Mul", [lengths, self._zero], f"{prefix}.zeros")
        widths = graph.plain("Add", [f"{prefix}.zeros", width], f"{prefix}.widths")
        return _LengthGrid(rows=rows, lengths=lengths, widths=widths, filled=filled)

    def _find(self, number: int) -> str:
        """Append nodes that find the indices of a class's rows: `[1, rows of the class]`."""
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
        """Append the width of a class; the last class is as wide as the sequence."""
        graph, prefix = self._graph, f"class.{number}"
        if number < len(WIDTHS):
            return f"{prefix}.width"
        graph.plain("Shape", [mask], f"{prefix}.shape", start=1, end=2)
        graph.plain("Squeeze", [f"{prefix}.shape"], f"{prefix}.sequence")
        return graph.plain("Cast", [f"{prefix}.sequence"], f"{prefix}.width", to=TensorProto.INT32)

    def _add_places(self, places: str) -> str:
        """Append each token's index in the concatenated grids of all classes: `[tokens]`."""
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
