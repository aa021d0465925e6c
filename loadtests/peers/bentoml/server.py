"""Serves `sentiment` under BentoML."""

import bentoml

from loadtests.peers.configuration import PeerConfiguration
from loadtests.peers.model import Sentiment

WAY = PeerConfiguration.read()
_BATCHING = {"batchable": True, "max_batch_size": WAY.batch, "max_latency_ms": 10_000}


@bentoml.service(workers=WAY.workers)
class SentimentService:
    """A list of texts a request; BentoML joins the lists where it batches."""

    def __init__(self) -> None:
        self._model = Sentiment(WAY.threads)

    @bentoml.api(**_BATCHING if WAY.batch > 1 else {})
    def classify(self, texts: list[str]) -> list[list[float]]:
        """Return the scores of each text."""
        return self._model.scores(texts)
