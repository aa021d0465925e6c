"""Finds the device graphs of a model: copies of its graph for one kind of device.

Beside `model.onnx` there may be `model.cuda-heads.onnx` for CUDA, `model.cuda-heads-fp16.onnx` for
CUDA in half precision, and `model.any-plain.onnx` for runtimes that compile a graph.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

DEVICE_GRAPH_FILES = "*.*-*.onnx"
Device = Literal["cuda", "any"]
# For each provider, the device whose graphs it can use. Graphs for `any` device are in fp32, and
# the runtime converts them to its precision.
_SUITED: Mapping[str, Device] = MappingProxyType(
    {"cuda": "cuda", "tensorrt": "any", "openvino": "any"}
)
HALVES = ("fp16", "bf16")


def device_graph_name(graph: Path, device: Device, attention: str, precision: str = "fp32") -> str:
    """Return the file name of `graph` for a device."""
    suffix = f"-{precision}" if precision in HALVES else ""
    return f"{graph.stem}.{device}-{attention}{suffix}.onnx"


def find_device_graphs(graph: Path, *, provider: str, precision: str) -> list[str]:
    """Return the file names of the graphs beside `graph` that suit a provider and a precision."""
    device = _SUITED.get(provider)
    names = sorted(path.name for path in graph.parent.glob(f"{graph.stem}.{device}-*.onnx"))
    if device == "any":
        return names
    wanted = precision if precision in HALVES else ""
    halves = tuple(f"-{precision}.onnx" for precision in HALVES)
    if wanted:
        return [name for name in names if name.endswith(f"-{wanted}.onnx")]
    return [name for name in names if not name.endswith(halves)]
