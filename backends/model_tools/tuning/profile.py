"""Lists the precisions that a variant may have, and what they are for."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from backends.gpus import GPU_PROVIDERS

Profile = Literal["int8", "fp16", "bf16"]
# The precisions in which runtimes compute a graph in fp32.
ROUNDING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"openvino": ("bf16",), "tensorrt": ("fp16", "bf16")}
)
Echo = Callable[[str], None]
# Where a precision gains something, and why it does not elsewhere.
PROVIDERS: Mapping[Profile, tuple[str, ...]] = MappingProxyType(
    {"int8": ("cpu",), "fp16": GPU_PROVIDERS, "bf16": (*GPU_PROVIDERS, "openvino")}
)
ELSEWHERE: Mapping[Profile, str] = MappingProxyType(
    {
        "int8": "its products are computed in eight bits by ONNX Runtime on CPUs alone",
        "fp16": "a CPU computes most of it in fp32 and is slower",
        "bf16": "on a CPU it is computed with `SLUICEGATE_BACKEND_PROVIDER=openvino` alone",
    }
)
