"""Writes device graphs: copies of a graph that suit other devices and share its weights.

The file of a device graph has only nodes and small tensors. Its weights are references (ONNX's
external data) to the file of the original graph. So the file is written quickly, and has only a few
hundred kilobytes. A device graph in half precision casts the weights when it is loaded.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from backends.model_tools.graphs.checkpoint import build_checkpoint
from backends.model_tools.graphs.options import Attention, GraphOptions, Precision
from backends.model_tools.graphs.weights import Weights, WeightsError
from backends.qualification.device_graphs import Device, device_graph_name
from backends.types import Pooling

# Kinds of attention for CUDA. The backend measures which kind is quickest on its device.
_KERNELS: tuple[Attention, ...] = ("heads", "ranges", "packed")
_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
_LEAST_BYTES = 1024


def write_device_graphs(
    graph: Path,
    config: Mapping[str, Any],
    weights: Weights,
    pooling: Pooling,
    finish: Callable[[ModelProto], object],
) -> None:
    """Write `model.cuda-heads.onnx` and the other device graphs beside `graph`.

    `finish` appends the steps after the encoder to a device graph. `graph` already has these steps.
    """
    stored = StoredTensors(graph)
    for device, options in _device_options():
        try:
            model = build_checkpoint(
                config, weights, pooling=pooling, options=options, stored=stored.by_name
            )
        except WeightsError:
            continue  # no kernel supports these options
        finish(model)
        stored.write(model, device_graph_name(graph, device, options.attention, options.precision))


def _device_options() -> Iterator[tuple[Device, GraphOptions]]:
    yield "any", GraphOptions(attention="plain")
    for precision in _PRECISIONS:
        for attention in _KERNELS:
            options = GraphOptions(attention=attention, precision=precision)
            if options.problem() is None:
                yield "cuda", options


class StoredTensors:
    """Finds weights in the file of a graph, and in its external data, by name or by content."""

    def __init__(self, graph: Path) -> None:
        self.by_name: dict[str, TensorProto] = {}
        self._graph = graph
        self._by_length: dict[int, list[tuple[bytes, TensorProto]]] = {}
        content = graph.read_bytes()
        at = 0
        for tensor in ModelProto.FromString(content).graph.initializer:
            if uses_external_data(tensor):
                raw = _read_external(tensor, graph.parent)
            else:
                raw = tensor.raw_data
                if len(raw) < _LEAST_BYTES:
                    continue
                # Tensors come in the order of their content in the file, so one pass finds all of
                # them.
                at = content.index(raw, at)
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                for key, value in (("location", graph.name), ("offset", at), ("length", len(raw))):
                    tensor.external_data.add(key=key, value=str(value))
                at += len(raw)
            self.by_name[tensor.name] = tensor
            self._by_length.setdefault(len(raw), []).append((raw, tensor))

    def write(self, model: ModelProto, name: str) -> None:
        """Write a model beside the graph.

        A weight that is also in the files of the graph becomes a reference to these files.
        """
        for tensor in model.graph.initializer:
            self.replace(tensor)
        self._graph.with_name(name).write_bytes(model.SerializeToString())

    def replace(self, tensor: TensorProto) -> bool:
        """Replace a tensor's content by a reference, if the graph's files have the content.

        Return whether the tensor is a reference now.
        """
        if uses_external_data(tensor):
            return True
        raw = tensor.raw_data
        for other, stored in self._by_length.get(len(raw), ()):
            if raw == other:
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                tensor.external_data.extend(stored.external_data)
                return True
        return False


def _read_external(tensor: TensorProto, folder: Path) -> bytes:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    load_external_data_for_tensor(copy, str(folder))
    return copy.raw_data
