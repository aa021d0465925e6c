"""Serves a model that OpenVINO computes, under LitServe.

The comparison uses LitServe, because OpenVINO's own server is a C++ program without a wheel.
"""

import os
from itertools import product

import numpy as np
import openvino
from numpy.typing import NDArray
from typing_extensions import override

from loadtests.peers.configuration import PeerConfiguration
from loadtests.peers.infinity.checkpoints import exported
from loadtests.peers.litserve.server import TextAPI, serve
from loadtests.peers.model import Inputs, PeerModel

# Lengths are rounded up, because OpenVINO compiles kernels at the first run of each shape.
_MULTIPLE, _LONGEST = 8, 64
_PRECISIONS = {"fp32": "f32", "bf16": "bf16"}
WAY = PeerConfiguration.read()


class OpenVinoAPI(TextAPI):
    """Takes one text a request, like its base class."""

    @override
    def setup(self, device: str) -> None:
        """Compile the graph in each worker, for one run at a time, and run every shape once."""
        core = openvino.Core()
        settings = {
            "PERFORMANCE_HINT": "LATENCY" if WAY.threads > 1 else "THROUGHPUT",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": WAY.threads,
            "INFERENCE_PRECISION_HINT": _PRECISIONS[WAY.precision],
            "ENABLE_CPU_PINNING": False,
        }
        graph = exported("embed", pooled=True) / "model.onnx"
        request = core.compile_model(str(graph), "CPU", settings).create_infer_request()

        def encode(inputs: Inputs) -> NDArray[np.float32]:
            given = {name: inputs[name].astype(np.int64) for name in names}
            results = request.infer(given, share_inputs=True)
            return np.array(results["sentence_embedding"], np.float32)

        names = [port.any_name for port in request.model_inputs]
        lengths = range(_MULTIPLE, _LONGEST + 1, _MULTIPLE)
        for rows, length in product(range(1, WAY.batch + 1), lengths):
            shape = np.ones((rows, length), np.int32)
            encode(dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), shape))
        self._model = PeerModel(encode, multiple=_MULTIPLE)


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    exported("embed", pooled=True)
    serve(OpenVinoAPI)
