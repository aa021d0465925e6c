"""Serves what a guard does by Presidio or by pipelines of transformers, behind FastAPI."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastapi
import numpy as np
import uvicorn

from loadtests.peers.configuration import MODELS, PUBLISHED, PeerConfiguration

MARKS = ("EMAIL_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "PHONE_NUMBER", "IP_ADDRESS", "US_SSN")
WAY = PeerConfiguration.read()


def presidio() -> Callable[[str], list[float]]:
    """Return a function that finds marks by Presidio's patterns, over a blank pipeline of spaCy."""
    import spacy  # noqa: PLC0415 - only this way needs it
    import tldextract  # noqa: PLC0415
    from presidio_analyzer import AnalyzerEngine  # noqa: PLC0415
    from presidio_analyzer.nlp_engine import SpacyNlpEngine  # noqa: PLC0415

    # It must not load a list of domains from the internet.
    tldextract.extract = tldextract.TLDExtract(suffix_list_urls=())
    nlp = SpacyNlpEngine()
    nlp.nlp = {"en": spacy.blank("en")}
    analyzer = AnalyzerEngine(nlp_engine=nlp, supported_languages=["en"])

    def find(text: str) -> list[float]:
        found = analyzer.analyze(text, language="en", entities=list(MARKS))
        places = sorted((one.start, one.end, MARKS.index(one.entity_type)) for one in found)
        return [float(value) for place in places for value in place]

    return find


def pipelines() -> Callable[[str], list[float]]:
    """Return a function that runs a classifier for each head of the demo's encoder by torch."""
    import torch  # noqa: PLC0415 - only this way needs it
    import transformers  # noqa: PLC0415

    from loadtests.peers.infinity.classifier import MeanForSequenceClassification  # noqa: PLC0415

    torch.set_num_threads(WAY.threads)
    models = Path(os.environ[MODELS])
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / PUBLISHED)
    loaded = []
    for name in WAY.options.split():
        head = np.load(models / name / "1" / "head.npz")
        model = MeanForSequenceClassification.from_pretrained(
            models / PUBLISHED, num_labels=head["w0"].shape[1]
        )
        model.classifier.weight.data = torch.tensor(head["w0"].T, dtype=torch.float32)
        model.classifier.bias.data = torch.tensor(head["b0"], dtype=torch.float32)
        loaded.append(
            transformers.pipeline(
                "text-classification", model=model.eval(), tokenizer=tokenizer, top_k=None
            )
        )

    def classify(text: str) -> list[float]:
        scores: list[float] = []
        for pipe in loaded:
            (ranked,) = pipe([text])
            found = {one["label"]: one["score"] for one in ranked}
            scores += [found[f"LABEL_{number}"] for number in range(len(found))]
        return scores

    return classify


def make_app() -> Any:
    """Return the app of one worker."""
    run = pipelines() if WAY.options else presidio()
    app = fastapi.FastAPI()

    @app.get("/health")
    async def health() -> str:
        return "ok"

    @app.post("/predict")
    async def predict(body: dict[str, str]) -> list[float]:
        return run(body["text"])

    return app


if __name__ == "__main__":
    uvicorn.run(
        "loadtests.peers.guards.server:make_app",
        factory=True,
        workers=WAY.workers,
        port=int(sys.argv[1]),
        log_level="warning",
    )
