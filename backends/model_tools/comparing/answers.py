"""Computes results with a model of a repository, and with the reference libraries."""

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from sluicegate.backends.algorithms.base import all_of
from sluicegate.backends.errors import BackendError, StartProblem
from sluicegate.backends.model_tools.comparing.results import Entity, Results
from sluicegate.backends.model_tools.running import answer, open_model
from sluicegate.backends.pipelines.ask import encode_result
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.types import Text
from sluicegate.wire.protocol import (
    ClassifyParameters,
    EmbedParameters,
    EntitiesParameters,
    Parameters,
    RerankParameters,
    Task,
)

_AT_ONCE = 32


def served_results(
    settings: BackendSettings, name: str, texts: Sequence[Text], task: Task
) -> Results:
    """Run one task of a model of a repository on texts, and return the results.

    Raises:
        StartProblem: the model does not exist, is broken, or refuses a text.
    """
    return asyncio.run(_run_all(settings, name, texts, task))


async def _run_all(
    settings: BackendSettings, name: str, texts: Sequence[Text], task: Task
) -> Results:
    slots = asyncio.Semaphore(_AT_ONCE)
    async with open_model(settings, name) as entry:

        async def run(number: int, text: Text) -> Any:
            async with slots:
                try:
                    found = await answer(entry, task, *_request(task, text))
                except BackendError as error:
                    raise StartProblem(f"text {number + 1}: {error}") from None
                return msgspec.json.decode(encode_result(found))

        return _collect(task, await all_of(run(*pair) for pair in enumerate(texts)))


def _request(task: Task, text: Text) -> tuple[Any, Parameters]:
    """Return the item and the parameters with which a task reads a text."""
    if not isinstance(text, str) and task is Task.RERANK:
        return text[1], RerankParameters(query=text[0])
    if task is Task.ENTITIES:
        return text, EntitiesParameters(aggregation="simple")
    return text, ClassifyParameters() if task is Task.CLASSIFY else EmbedParameters()


def _collect(task: Task, results: list[Any]) -> Results:
    if task is Task.EMBED:
        return Results(vectors=np.array([a["embedding"] for a in results], dtype=np.float32))
    if task is Task.RERANK:
        return Results(scores=[{"score": result["score"]} for result in results])
    if task is Task.CLASSIFY:
        lines = [result["labels"] for result in results]
        return Results(scores=[{e["label"]: e["score"] for e in line} for line in lines])
    found = [
        [{field: entity[field] for field in ("label", "start", "end", "score")} for entity in line]
        for line in (result["entities"] for result in results)
    ]
    return Results(entities=msgspec.convert(found, list[list[Entity]]))


def reference_results(folder: Path, task: Task, texts: Sequence[Text]) -> Results:
    """Return the results of transformers or sentence-transformers for a checkpoint.

    Raises:
        StartProblem: the libraries are not installed, or cannot use the folder.
    """
    if not folder.is_dir():
        raise StartProblem(f"`--folder {folder}`: there is no such folder")
    try:
        return _FUNCTIONS[task](str(folder), texts)
    except ImportError as error:
        raise StartProblem(
            f"`models compare` needs the reference library `{error.name}`, which is not installed; "
            "`pip install sentence-transformers` installs it, with transformers and torch"
        ) from None
    except Exception as error:  # noqa: BLE001 - the libraries raise many types of errors
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise StartProblem(f"`{folder}`: the reference library failed: {reason[0]}") from None


def _classify(folder: str, texts: Sequence[Text]) -> Results:
    classify = _pipeline("text-classification", folder)
    scores = []
    for text in texts:
        item = text if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
        found = classify(item, top_k=None, truncation=True)
        scores.append({label["label"]: float(label["score"]) for label in found})
    return Results(scores=scores)


def _find_entities(folder: str, texts: Sequence[Text]) -> Results:
    find = _pipeline("token-classification", folder, aggregation_strategy="simple")
    return Results(
        entities=[
            [
                Entity(
                    label=entity["entity_group"],
                    start=entity["start"],
                    end=entity["end"],
                    score=float(entity["score"]),
                )
                for entity in find(text)
            ]
            for text in texts
        ]
    )


def _embed(folder: str, texts: Sequence[Text]) -> Results:
    library = importlib.import_module("sentence_transformers")
    model = library.SentenceTransformer(folder, device="cpu")
    vectors = model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
    return Results(vectors=np.asarray(vectors, dtype=np.float32))


def _rank(folder: str, texts: Sequence[Text]) -> Results:
    library = importlib.import_module("sentence_transformers")
    model = library.CrossEncoder(folder, device="cpu")
    scores = model.predict([tuple(text) for text in texts], show_progress_bar=False)
    return Results(scores=[{"score": float(score)} for score in np.ravel(scores)])


def _pipeline(task: str, folder: str, **options: Any) -> Any:
    return importlib.import_module("transformers").pipeline(
        task, model=folder, tokenizer=folder, device="cpu", **options
    )


_FUNCTIONS: Mapping[Task, Callable[[str, Sequence[Text]], Results]] = MappingProxyType(
    {
        Task.CLASSIFY: _classify,
        Task.ENTITIES: _find_entities,
        Task.EMBED: _embed,
        Task.RERANK: _rank,
    }
)
