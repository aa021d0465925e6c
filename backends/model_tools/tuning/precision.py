"""Lists the precisions of variants, and the providers that gain from them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from wire.gpus import GPU_PROVIDERS

VariantPrecision = Literal["int8", "fp16", "bf16"]
# The precisions to which a provider's runtime can round an fp32 graph.
ROUNDING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"openvino": ("bf16",), "tensorrt": ("fp16", "bf16")}
)
Echo = Callable[[str], None]
# The providers that gain from each precision, and why all other providers do not gain.
PROVIDERS: Mapping[VariantPrecision, tuple[str, ...]] = MappingProxyType(
    {"int8": ("cpu",), "fp16": GPU_PROVIDERS, "bf16": (*GPU_PROVIDERS, "openvino")}
)
ELSEWHERE: Mapping[VariantPrecision, str] = MappingProxyType(
    {
        "int8": "only ONNX Runtime on a CPU computes products in int8",
        "fp16": "a CPU computes most of the graph in fp32, and is slower",
        "bf16": "on a CPU, bf16 needs `SLUICEGATE_BACKEND_PROVIDER=openvino`",
    }
)
