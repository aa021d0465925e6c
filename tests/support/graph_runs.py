"""Runs an encoder graph in ONNX Runtime over rows of token ids, padded together."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.types import OutputKind

Row = tuple[list[int], list[int]]


def with_shapes(model: ModelProto) -> ModelProto:
    """Return the graph with the shapes and types that ONNX Runtime infers."""
    from onnxruntime.tools import (  # type: ignore[import-untyped]  # noqa: PLC0415 - it imports sympy
        symbolic_shape_infer,
    )

    inference = symbolic_shape_infer.SymbolicShapeInference
    inferred: ModelProto = inference.infer_shapes(model, auto_merge=True)
    return inferred


def open_graph(path: Path, *, dimensions: int) -> OnnxExecutor:
    """Open the graph at `path` on the CPU."""
    outputs = {OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"}
    return OnnxExecutor(
        GraphSource(path=path, outputs=outputs, dimensions=dimensions), worker_threads=1
    )


def run_rows(
    graph: OnnxExecutor, rows: list[Row], output: OutputKind, *, length: int | None = None
) -> NDArray[np.float32]:
    """Run (token ids, type ids) rows in one batch, padded on the right to `length`."""
    width = length or max(len(ids) for ids, _ in rows)
    ids, types, mask = np.zeros((3, len(rows), width), dtype=np.int32)
    for place, (row, kinds) in enumerate(rows):
        ids[place, : len(row)] = row
        types[place, : len(row)] = kinds
        mask[place, : len(row)] = 1
    return graph.run(PaddedBatch(ids=ids, mask=mask, type_ids=types, output=output))
