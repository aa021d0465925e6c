"""Compiles graphs with OpenVINO for this CPU, in fp32 or bf16."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.provider import first_line
from sluicegate.wire.installing import install_command

_CPU_INFO = Path("/proc/cpuinfo")
# Without these CPU features, bf16 in OpenVINO is slower than fp32.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
_KERNELS = 1000
# OpenVINO's name of each precision. Other precisions run as `f32`.
_PRECISIONS: Mapping[str, str] = MappingProxyType({"bf16": "bf16"})
_TYPES: Mapping[str, str] = MappingProxyType({"i64": "tensor(int64)", "i32": "tensor(int32)"})
# Operators that may lie between `input_ids` and the embedding table.
_SHAPING = frozenset({"Convert", "GatherND", "Reshape", "Squeeze", "Unsqueeze"})


class _Port(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an input or output in ONNX Runtime's form; a dynamic size is `None`."""

    name: str
    type: str
    shape: list[int | None]


class CompiledGraph(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds a compiled graph and its vocabulary size, which is `None` if unknown."""

    model: Any
    vocabulary: int | None

    def get_inputs(self) -> list[_Port]:
        """Return the inputs, like the method of an ONNX Runtime session."""
        return [_port(each) for each in self.model.inputs]

    def get_outputs(self) -> list[_Port]:
        """Return the outputs, like the method of an ONNX Runtime session."""
        return [_port(each) for each in self.model.outputs]


def compile_graph(source: GraphSource, *, threads: int) -> CompiledGraph:
    """Compile a graph for `threads` concurrent runs of one thread each.

    Raises:
        ModelProblem: OpenVINO is not installed or cannot load the graph, or the graph is bf16 and
            this CPU has no bf16.
    """
    check_precision(source)
    openvino = runtime()
    core = openvino.Core()
    try:
        graph = core.read_model(source.path)
        compiled = core.compile_model(graph, "CPU", _properties(source.precision, threads))
    except Exception as error:  # OpenVINO's errors only share the base `Exception`
        raise ModelProblem(
            f"{source.path}: OpenVINO cannot load the graph: {first_line(error)}"
        ) from error
    return CompiledGraph(model=compiled, vocabulary=_vocabulary(graph))


def check_precision(source: GraphSource, cpu_info: Path = _CPU_INFO) -> None:
    """Check that this CPU supports the precision that a model declares.

    Raises:
        ModelProblem: the model declares bf16 and this CPU does not have it.
    """
    if source.precision == "bf16" and not computes_bf16(cpu_info):
        raise ModelProblem(
            f"{source.path}: `profile: bf16` needs a CPU with `avx512_bf16` or `amx_bf16`, and "
            "this CPU has neither; select a revision in fp32 in `serving.yaml`, or serve this "
            "revision on another machine"
        )


def computes_bf16(cpu_info: Path = _CPU_INFO) -> bool:
    """Return whether this CPU has instructions for bf16."""
    return bool(_BF16_FLAGS & _flags(cpu_info))


def runtime() -> Any:  # the library may be absent
    """Import OpenVINO with its telemetry disabled.

    Raises:
        ModelProblem: OpenVINO is not installed.
    """
    # OpenVINO sends telemetry if it can import this package, so the import must fail.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        import openvino  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ModelProblem(
            "the provider `openvino` needs the package `openvino`; run "
            f"{install_command('backend-cpu,openvino')}; or set the provider to `cpu`"
        ) from error
    return openvino


def _properties(precision: str, threads: int) -> dict[str, object]:
    return {
        # Otherwise, OpenVINO chooses bf16 by itself if the CPU has it.
        "INFERENCE_PRECISION_HINT": _PRECISIONS.get(precision, "f32"),
        "EXECUTION_MODE_HINT": "PERFORMANCE" if precision in _PRECISIONS else "ACCURACY",
        "NUM_STREAMS": threads,
        "INFERENCE_NUM_THREADS": threads,
        # Each shape has its own kernels. OpenVINO's default of 5,000 takes about 1 GB.
        "CPU_RUNTIME_CACHE_CAPACITY": _KERNELS,
        # Pinning slows runs down where containers move between cores.
        "ENABLE_CPU_PINNING": False,
    }


def _flags(cpu_info: Path) -> set[str]:
    try:
        lines = cpu_info.read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return set(next((line.split() for line in lines if line.startswith("flags")), []))


def _port(port: Any) -> _Port:
    kind, shape = port.get_element_type().to_string(), port.get_partial_shape()
    return _Port(
        name=port.get_any_name(),
        type=_TYPES.get(kind, kind),
        shape=[each.get_length() if each.is_static else None for each in shape],
    )


def _vocabulary(graph: Any) -> int | None:
    """Return the number of rows of the embedding table, or `None` if the table is not found.

    Callers must check token ids: OpenVINO silently uses zeros for an id outside the table.
    """
    for node in graph.get_ops():
        if node.get_type_name() != "Gather":
            continue
        ids = node.input_value(1)
        while ids.get_node().get_type_name() in _SHAPING:
            ids = ids.get_node().input_value(0)
        rows = node.input_value(0).get_partial_shape()[0]
        if "input_ids" in ids.get_names() and rows.is_static:
            return int(rows.get_length())
    return None
