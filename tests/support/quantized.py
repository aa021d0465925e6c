"""Quantizes a graph to dynamic int8 as ONNX Runtime does, with scales of each batch."""

import tempfile
from pathlib import Path

from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-untyped]


def make_dynamic(graph: bytes) -> bytes:
    """Return `graph` with its weights in int8 and its activations quantized as they come."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        before.write_bytes(graph)
        quantize_dynamic(
            before,
            after,
            weight_type=QuantType.QInt8,
            per_channel=True,
            # Types of what follows a fused operator cannot be inferred.
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
        )
        return after.read_bytes()
