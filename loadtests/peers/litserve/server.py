"""Serves `sentiment` under LitServe."""

import sys
from typing import Any

import litserve

from loadtests.peers.configuration import PeerConfiguration
from loadtests.peers.model import Sentiment


class SentimentAPI(litserve.LitAPI):
    """One text a request; LitServe gathers them into lists where it batches."""

    def setup(self, device: str) -> None:
        """Open the model, in each worker."""
        self._model = Sentiment(WAY.threads)

    def decode_request(self, request: dict[str, str]) -> str:
        """Return the text."""
        return request["text"]

    def predict(self, x: Any) -> list[Any]:
        """Run one text, or the list of a batch."""
        return self._model.scores(x) if isinstance(x, list) else self._model.scores([x])[0]

    def encode_response(self, output: list[float]) -> dict[str, list[float]]:
        """Return the body."""
        return {"scores": output}


WAY = PeerConfiguration.read()

if __name__ == "__main__":
    api = SentimentAPI(max_batch_size=WAY.batch, batch_timeout=WAY.delay)
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=WAY.workers, fast_queue=True
    )
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False
    )
