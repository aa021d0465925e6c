"""Computes results with the pipelines of the reference libraries."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from backends.errors import StartProblem
from backends.model_tools.comparing.results import Entity, Results
from backends.types import Text
from wire.protocol import Task


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
