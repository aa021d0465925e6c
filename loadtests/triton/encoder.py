"""Implements an ONNX encoder for Triton's Python backend: token ids in, vectors out.

The wheel of Triton has no ONNX backend. This model has the same tensors, names and answers as a
model of the ONNX backend.
"""

import json
import os
from typing import Any

import triton_python_backend_utils as triton

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime  # type: ignore[import-untyped]


class TritonPythonModel:
    """One instance of the model; Triton runs each instance in a process."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the graph that the parameter `graph` of the configuration names."""
        config = json.loads(args["model_config"])
        self._inputs = [tensor["name"] for tensor in config["input"]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        graph = config["parameters"]["graph"]["string_value"]
        self._session = onnxruntime.InferenceSession(
            graph, options, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run each request as one batch, for the outputs that the request asks for."""
        return [self._run(request) for request in requests]

    def _run(self, request: Any) -> Any:
        feeds = {
            name: triton.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs
        }
        wanted = request.requested_output_names()
        try:
            values = self._session.run(wanted, feeds)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no common base
            return triton.InferenceResponse([], triton.TritonError(type(error).__name__))
        outputs = [triton.Tensor(*pair) for pair in zip(wanted, values, strict=True)]
        return triton.InferenceResponse(outputs)
