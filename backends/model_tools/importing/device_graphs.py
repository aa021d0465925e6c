"""Writes device graphs: copies of a graph that suit other devices and share its weights.

The file of a device graph has only nodes and small tensors. Its weights are references (ONNX's
external data) to the file of the original graph. So the file is written quickly, and has only a few
hundred kilobytes. A device graph in half precision casts the weights when it is loaded. Before a
backend uses a device graph, it compares the outputs of the device graph and of the original graph.

If Sluicegate built the graph, it also builds the device graphs. An exported graph is optimized for
CUDA by ONNX Runtime's optimizer. The optimizer recognizes the attention nodes that exporters write,
and replaces them by one fused node.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from sluicegate.backends.model_tools.graphs.checkpoint import build_checkpoint
from sluicegate.backends.model_tools.graphs.graph_builder import FUSED, copy_model
from sluicegate.backends.model_tools.graphs.half import halve, infer_types, is_half
from sluicegate.backends.model_tools.graphs.options import Attention, GraphOptions, Precision
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError
from sluicegate.backends.qualification.device_graphs import Device, device_graph_name
from sluicegate.backends.types import Pooling

# Kinds of attention for CUDA. The backend measures which kind is quickest on its device.
_KERNELS: tuple[Attention, ...] = ("heads", "ranges", "packed")
_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
_LEAST_BYTES = 1024
# Graphs from these quantizers are already optimized for one device.
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "Integer")
_LARGEST_HALF = float(np.finfo(np.float16).max)


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
                config, weights, pooling=pooling, options=options, stored=stored.find
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
        self._by_name: dict[str, TensorProto] = {}
        self._graph = graph
        self._by_length: dict[int, list[tuple[bytes | memoryview, TensorProto]]] = {}
        content = graph.read_bytes()
        at = 0
        for tensor in ModelProto.FromString(content).graph.initializer:
            raw: bytes | memoryview
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
            self._by_name[tensor.name] = tensor
            self._by_length.setdefault(len(raw), []).append((raw, tensor))

    def find(self, name: str, tensor: NDArray[np.float32]) -> TensorProto | None:
        """Return the weight `name` if the files have it in this shape."""
        stored = self._by_name.get(name)
        return stored if stored is not None and tuple(stored.dims) == tensor.shape else None

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


def _read_external(tensor: TensorProto, folder: Path) -> memoryview:
    """Return the bytes of a tensor, mapped into memory."""
    entry = ExternalDataInfo(tensor)
    content = np.memmap(folder / entry.location, dtype=np.uint8, mode="r")
    start = entry.offset or 0
    length = entry.length or len(content) - start
    return content[start : start + length].data


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop the optimizer's log messages, which are about its own arguments."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(level)


@_quiet()
def write_optimized_graphs(graph: Path, config: Mapping[str, Any]) -> None:
    """Write up to four graphs for CUDA beside `graph`.

    - `model.cuda-optimized.onnx` has fused attention, and keeps padding.
    - `model.cuda-packed.onnx` has fused attention, and leaves padding out.
    - `model.cuda-optimized-fp16.onnx` and `model.cuda-packed-fp16.onnx` are the same graphs
      in fp16.

    A graph is left out if its conversion fails. If no attention can be fused, only
    `model.cuda-optimized-fp16.onnx` is written.

    If `graph` is in fp16, only the two graphs in fp16 are written, or no graph if no attention can
    be fused. If `graph` is quantized, nothing is written.
    """
    model = onnx.load(str(graph))
    operators = [node.op_type for node in model.graph.node]
    if any(mark in operator for operator in operators for mark in _QUANTIZED):
        return
    stored, was_half = StoredTensors(graph), is_half(model)
    fused = _fuse(model, config)
    if was_half:
        models = {"fp16": fused}
    else:
        half = _halve(fused or onnx.load(str(graph)), stored)
        models = {"fp32": fused, "fp16": half}
    for precision, optimized in models.items():
        if optimized is not None:
            stored.write(optimized, device_graph_name(graph, "cuda", "optimized", precision))
            packed = _pack(optimized) if fused is not None else None
            if packed is not None:
                stored.write(packed, device_graph_name(graph, "cuda", "packed", precision))


def _fuse(model: ModelProto, config: Mapping[str, Any]) -> ModelProto | None:
    """Return `model` with fused attention; `None` if no attention can be fused.

    `model` is changed, and must not be used afterwards.
    """
    # Imported late, because the package changes `sys.path` and takes two seconds to load.
    from onnxruntime.transformers.fusion_options import (  # type: ignore[import-untyped] # noqa: PLC0415
        FusionOptions,
    )
    from onnxruntime.transformers.optimizer import (  # type: ignore[import-untyped] # noqa: PLC0415
        optimize_by_fusion,
    )

    options = FusionOptions("bert")
    # Query, key and value stay separate products, so that their weights can be shared.
    options.use_multi_head_attention = True
    # The optimizer's shape inference needs `sympy`. The optimizer itself needs types, which are
    # inferred below.
    options.enable_shape_inference = False
    try:
        types = [*infer_types(model)]
        del model.graph.value_info[:]
        model.graph.value_info.extend(types)
        fused: ModelProto = optimize_by_fusion(
            model,
            num_heads=_number(config, "num_attention_heads", "n_heads"),
            hidden_size=_number(config, "hidden_size", "dim"),
            optimization_options=options,
        ).model
    except Exception:  # noqa: BLE001 - then the model has no such graphs
        return None
    if not _has(fused, "MultiHeadAttention"):
        return None
    del fused.graph.value_info[:]
    if not any(opset.domain == FUSED for opset in fused.opset_import):
        fused.opset_import.append(helper.make_opsetid(FUSED, 1))
    return fused


def _pack(model: ModelProto) -> ModelProto | None:
    """Return the fused graph for rows without padding; `None` if it cannot be converted."""
    from onnxruntime.transformers.convert_to_packing_mode import (  # type: ignore[import-untyped] # noqa: PLC0415
        PackingMode,
    )
    from onnxruntime.transformers.onnx_model import (  # type: ignore[import-untyped] # noqa: PLC0415
        OnnxModel,
    )

    packed = OnnxModel(copy_model(model))
    try:
        PackingMode(packed).convert(use_symbolic_shape_infer=False)
        packed.topological_sort()
    except Exception:  # noqa: BLE001 - if the converter fails, there is no such graph
        return None
    found: ModelProto = packed.model
    return found if _has(found, "PackedMultiHeadAttention") else None


def _has(model: ModelProto, operator: str) -> bool:
    return any(node.op_type == operator for node in model.graph.node)


def _number(config: Mapping[str, Any], *names: str) -> int:
    """Return the first number among the fields `names` of the configuration.

    Return 0 if there is none. Then the optimizer detects the value itself.
    """
    return next((config[name] for name in names if isinstance(config.get(name), int)), 0)


def _halve(model: ModelProto, stored: StoredTensors) -> ModelProto | None:
    """Return the graph in fp16; when it is loaded, stored weights are cast from fp32."""
    try:
        half = halve(model)
    except Exception:  # noqa: BLE001 - if the converter fails, there is no such graph
        return None
    exact = {tensor.name: tensor for tensor in model.graph.initializer}
    casts: list[NodeProto] = []
    for tensor in half.graph.initializer:
        original = exact.get(tensor.name)
        if tensor.data_type != TensorProto.FLOAT16 or original is None:
            continue
        weight = TensorProto()
        weight.CopyFrom(original)
        weight.name = f"{tensor.name}.fp32"
        if _fits(original) and stored.replace(weight):
            name = tensor.name
            tensor.CopyFrom(weight)
            casts.append(helper.make_node("Cast", [weight.name], [name], to=TensorProto.FLOAT16))
    nodes = [*casts, *half.graph.node]
    del half.graph.node[:]
    half.graph.node.extend(nodes)
    return half


def _fits(tensor: TensorProto) -> bool:
    """Return whether all values fit into fp16.

    The converter clips larger values, so their tensor differs from the stored one.
    """
    return bool(np.abs(numpy_helper.to_array(tensor)).max(initial=0.0) <= _LARGEST_HALF)
