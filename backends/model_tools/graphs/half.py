"""Rewrites a graph in fp32 so that it computes in fp16, its outputs in fp32 as before."""

from onnx import ModelProto
from onnxruntime.transformers.float16 import (  # type: ignore[import-untyped]
    convert_float_to_float16,
)


def halve(model: ModelProto) -> ModelProto:
    """Return the graph in fp16, by ONNX Runtime's converter.

    What fp16 cannot hold, such as the least number that masks padding, becomes its extreme.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    # Shapes of fused operators cannot be inferred, and are not needed.
    halved: ModelProto = convert_float_to_float16(
        copy, keep_io_types=True, disable_shape_infer=True
    )
    return halved
