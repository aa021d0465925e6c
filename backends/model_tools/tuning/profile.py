"""Lists the precisions that a variant may have, and what they are for."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

Profile = Literal["int8", "fp16", "bf16"]
Echo = Callable[[str], None]
# Where a precision gains something, and why it does not elsewhere.
PROVIDERS: Mapping[Profile, tuple[str, ...]] = MappingProxyType(
    {"int8": ("cpu",), "fp16": ("cuda", "tensorrt"), "bf16": ("openvino",)}
)
ELSEWHERE: Mapping[Profile, str] = MappingProxyType(
    {
        "int8": "its products are computed in eight bits by ONNX Runtime on CPUs alone",
        "fp16": "a CPU computes most of it in fp32 and is slower",
        "bf16": "it is computed with `SLUICEGATE_BACKEND_PROVIDER=openvino` alone",
    }
)
