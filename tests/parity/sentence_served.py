"""Imports sentence transformers with other modules, serves them, and collects the answers."""

from pathlib import Path

import msgspec
import numpy as np

from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.wire.protocol import Done, EmbedParameters, Failed, RerankParameters, Task
from tests.parity.references import Numbers, References
from tests.parity.sentence_checkpoints import (
    CHECKPOINTS,
    CROSS,
    CROSS_RERANK,
    RANKED,
    RERANK,
    folder_name,
    sentence_texts,
    write_cross_encoder,
    write_sentence_checkpoint,
)
from tests.support.backend_calls import Backend, running_backend


def write_sentence_models(root: Path) -> Path:
    """Import all of them into a repository."""
    for checkpoint in CHECKPOINTS:
        name = folder_name(checkpoint)
        convert(
            write_sentence_checkpoint(checkpoint, root / ".checkpoints" / name), root / name / "1"
        )
    entry = root / CROSS.name / "1"
    convert(write_cross_encoder(root / ".checkpoints" / CROSS.name), entry, {"truncate": True})
    return root


async def answer_sentences(models: Path) -> References:
    """Return what a backend over the repository answers, vectors as the modules leave them."""
    found, texts = References(), sentence_texts()
    async with running_backend(models, threads=1, max_queue_rows=8192) as backend:
        for checkpoint in CHECKPOINTS:
            outcomes = await backend.ask(
                folder_name(checkpoint),
                Task.EMBED,
                texts,
                parameters=EmbedParameters(normalize=False),
            )
            found.scores[checkpoint.name] = _numbers(outcomes, "embedding")
        found.scores[RERANK] = await _rank(backend, folder_name(RANKED), texts)
        found.scores[CROSS_RERANK] = await _rank(backend, CROSS.name, texts)
    return found


async def _rank(backend: Backend, model: str, texts: list[str]) -> Numbers:
    query, *documents = texts
    parameters = RerankParameters(query=query)
    return _numbers(
        await backend.ask(model, Task.RERANK, documents, parameters=parameters), "score"
    )


def _numbers(outcomes: list[Done | Failed], field: str) -> Numbers:
    results = []
    for outcome in outcomes:
        assert isinstance(outcome, Done), outcome
        results.append(msgspec.json.decode(outcome.result)[field])
    return np.array(results)
