"""Serves a model under BentoML."""

import bentoml

from loadtests.peers.configuration import PeerConfiguration
from loadtests.peers.model import open_model

WAY = PeerConfiguration.read()
_BATCHING = {"batchable": True, "max_batch_size": WAY.batch, "max_latency_ms": 10_000}


@bentoml.service(workers=WAY.workers)
class TextService:
    """Takes a list of texts in each request; BentoML concatenates the lists of a batch."""

    def __init__(self) -> None:
        self._model = open_model(WAY.threads)

    @bentoml.api(**_BATCHING if WAY.batch > 1 else {})
    def predict(self, texts: list[str]) -> list[list[float]]:
        """Return the vector or the scores of each text."""
        return self._model.rows(texts)
