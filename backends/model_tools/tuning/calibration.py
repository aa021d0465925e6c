"""Runs texts through a graph, and keeps samples of the inputs of its matrix products."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from sluicegate.backends.executors.graph import read_inputs
from sluicegate.backends.executors.provider import DeviceOptions, open_session
from sluicegate.backends.model_tools.graphs.quantize import Product, expose
from sluicegate.backends.model_tools.graphs.ranges import Samples
from sluicegate.backends.model_tools.graphs.weight_file import temporary_graph
from sluicegate.backends.qualification.text_runs import TextBatch
from sluicegate.backends.types import FloatArray

_SAMPLES = 1024


def collect(
    model: ModelProto, products: Sequence[Product], batches: Sequence[TextBatch], *, beside: Path
) -> dict[str, Samples]:
    """Return samples of the activations that each product reads; keys are the products' names.

    `beside` is the path of the graph, which has its weights beside it if they are large.
    """
    names = list(dict.fromkeys(product.activations for product in products))
    collectors = {name: _Collector() for name in names}
    tokens = sum(int(batch.padded.mask.sum()) for batch in batches)
    chosen = np.zeros(tokens, dtype=np.bool_)
    random = np.random.default_rng(0)
    chosen[random.choice(tokens, min(tokens, _SAMPLES), replace=False)] = True
    start = 0
    for mask, tensors in _activations(expose(model, names), names, batches, beside):
        stop = start + int(mask.sum())
        for collector, tensor in zip(collectors.values(), tensors, strict=True):
            # Graphs that compute real tokens only have no padding. A tensor after the pooling has
            # one row for each text, and all these rows are kept.
            real = tensor if tensor.ndim == mask.ndim else tensor[mask]
            few = len(real) != stop - start
            collector.add(real, np.ones(len(real), dtype=np.bool_) if few else chosen[start:stop])
        start = stop
    return {product.name: collectors[product.activations].samples() for product in products}


class _Collector:
    """Collects rows of one tensor: keeps some rows, and the extremes over all rows."""

    def __init__(self) -> None:
        self._kept: list[FloatArray] = []
        self._low: list[FloatArray] = []
        self._high: list[FloatArray] = []

    def add(self, rows: FloatArray, chosen: NDArray[np.bool_]) -> None:
        self._kept.append(rows[chosen])
        self._low.append(rows.min(axis=0))
        self._high.append(rows.max(axis=0))

    def samples(self) -> Samples:
        return Samples(
            rows=np.concatenate(self._kept),
            low=np.min(self._low, axis=0),
            high=np.max(self._high, axis=0),
        )


def _activations(
    model: ModelProto, names: list[str], batches: Sequence[TextBatch], beside: Path
) -> Iterable[tuple[NDArray[np.bool_], list[FloatArray]]]:
    """Yield for each batch the mask of its tokens, and the tensors `names`."""
    with temporary_graph(model.SerializeToString(), beside) as path:
        session = open_session(path, DeviceOptions(provider="cpu"))
        kinds = read_inputs(session, path)
    for batch in batches:
        given = batch.padded.by_input()
        feeds = {name: given[name].astype(kind) for name, kind in kinds.items()}
        yield batch.padded.mask.astype(np.bool_), session.run(names, feeds)
