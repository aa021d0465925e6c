"""Holds rows of token ids, padded on the right to one length."""

from collections.abc import Sequence

import msgspec
import numpy as np

from sluicegate.backends.types import IntArray, OutputKind

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class PaddedBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the int32 inputs of a graph, of shape `(rows, length)`, and the output to compute.

    Row `i` has `mask[i].sum()` tokens, followed by zeros.
    """

    ids: IntArray
    mask: IntArray
    type_ids: IntArray
    output: OutputKind

    def by_input(self) -> dict[str, IntArray]:
        """Return the arrays by the names of the graph's inputs."""
        return dict(zip(INPUTS, (self.ids, self.mask, self.type_ids), strict=True))


def pad(rows: Sequence[IntArray], output: OutputKind, *, length: int = 0) -> PaddedBatch:
    """Pad rows of token ids to the longest row, and to at least `length`; all type ids are 0."""
    ids, mask = np.zeros((2, len(rows), max(length, *map(len, rows))), dtype=np.int32)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return PaddedBatch(ids=ids, mask=mask, type_ids=np.zeros_like(ids), output=output)


def ones(rows: int, length: int, output: OutputKind) -> PaddedBatch:
    """Return a batch for trial runs, without padding, in which every token id is 1."""
    return pad([np.ones(length, dtype=np.int32)] * rows, output)
