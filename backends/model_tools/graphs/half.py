"""Rewrites a graph in fp32 so that it computes in fp16, its outputs in fp32 as before."""

from onnx import ModelProto
from onnxruntime.transformers.float16 import (  # type: ignore[import-untyped]
    convert_float_to_float16,
)

from backends.model_tools.graphs.graph_builder import copy_model


def halve(model: ModelProto) -> ModelProto:
    """Return the graph in fp16, by ONNX Runtime's converter.

    What fp16 cannot hold, such as the least number that masks padding, becomes its extreme.
    """
    # Shapes of fused operators cannot be inferred, and are not needed.
    halved: ModelProto = convert_float_to_float16(
        copy_model(model), keep_io_types=True, disable_shape_infer=True
    )
    return halved
