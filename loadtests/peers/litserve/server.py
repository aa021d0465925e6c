"""Serves a model under LitServe."""

import sys
from typing import Any

import litserve

from loadtests.peers.configuration import PeerConfiguration
from loadtests.peers.model import open_model


class TextAPI(litserve.LitAPI):
    """Takes one text a request; with batching, LitServe makes a list of several requests' texts."""

    def setup(self, device: str) -> None:
        """Open the model, in each worker."""
        self._model = open_model(WAY.threads)

    def decode_request(self, request: dict[str, str]) -> str:
        """Return the text of a request."""
        return request["text"]

    def predict(self, x: Any) -> list[Any]:
        """Run one text, or the texts of a batch."""
        return self._model.rows(x) if isinstance(x, list) else self._model.rows([x])[0]

    def encode_response(self, output: list[float]) -> dict[str, list[float]]:
        """Return the body of the response."""
        return {"values": output}


WAY = PeerConfiguration.read()


def serve(api: type[TextAPI]) -> None:
    """Serve on the port that the first argument gives."""
    server = litserve.LitServer(
        api(max_batch_size=WAY.batch, batch_timeout=WAY.delay),
        accelerator="cpu",
        workers_per_device=WAY.workers,
        fast_queue=True,
    )
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False
    )


if __name__ == "__main__":
    serve(TextAPI)
