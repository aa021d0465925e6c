"""Implements a model for Triton's Python backend."""

from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from loadtests.peers.configuration import PeerConfiguration
from loadtests.peers.model import open_model


class TritonPythonModel:
    """One instance of the model; Triton runs each instance in a process."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the model."""
        self._model = open_model(PeerConfiguration.read().threads)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run the requests that Triton batched, one text each, as one batch."""
        texts = [
            triton.get_input_tensor_by_name(request, "text").as_numpy().item().decode()
            for request in requests
        ]
        rows = np.array(self._model.rows(texts), np.float32)
        return [triton.InferenceResponse([triton.Tensor("values", row[None])]) for row in rows]
