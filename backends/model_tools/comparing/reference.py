"""Runs a reference library on a checkpoint: a program of its own, for any Python.

It reads a JSON object on standard input: `folder`, `library`, `task`, `items` and `options`.
It writes a JSON object on its last line: `results`, or `missing` (a package that is not installed),
or `failed` (a reason). It imports nothing of Sluicegate, so that it also runs in another
environment. Weights are read from safetensors only, and a checkpoint's own code is never run.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

_SAFE: dict[str, Any] = {"use_safetensors": True}


def _classify(folder: str, items: list[Any]) -> list[Any]:
    pipeline = _pipeline("text-classification", folder)
    found = []
    for item in items:
        text = item if isinstance(item, str) else {"text": item[0], "text_pair": item[1]}
        scores = pipeline(text, top_k=None, truncation=True)
        found.append({each["label"]: float(each["score"]) for each in scores})
    return found


def _find_entities(folder: str, items: list[Any]) -> list[Any]:
    pipeline = _pipeline("token-classification", folder, aggregation_strategy="simple")
    return [[_entity(each, each["entity_group"]) for each in pipeline(item)] for item in items]


def _find_any_entities(folder: str, items: list[Any], labels: list[str]) -> list[Any]:
    library = importlib.import_module("gliner")
    model = library.GLiNER.from_pretrained(folder, local_files_only=True)
    return [
        [_entity(each, each["label"]) for each in model.predict_entities(item, labels)]
        for item in items
    ]


def _entity(found: Any, label: str) -> dict[str, Any]:
    return {
        "label": label,
        "start": found["start"],
        "end": found["end"],
        "score": float(found["score"]),
    }


def _embed(folder: str, items: list[Any]) -> list[Any]:
    library = importlib.import_module("sentence_transformers")
    model = library.SentenceTransformer(folder, device="cpu", model_kwargs=_SAFE)
    vectors = model.encode(items, normalize_embeddings=True, show_progress_bar=False)
    return [[float(number) for number in vector] for vector in vectors]


def _embed_static(folder: str, items: list[Any]) -> list[Any]:
    model = importlib.import_module("model2vec").StaticModel.from_pretrained(folder)
    return [_unit([float(number) for number in vector]) for vector in model.encode(items)]


def _unit(vector: list[float]) -> list[float]:
    length = sum(number * number for number in vector) ** 0.5 or 1.0
    return [number / length for number in vector]


def _rank(folder: str, items: list[Any]) -> list[Any]:
    library = importlib.import_module("sentence_transformers")
    model = library.CrossEncoder(folder, device="cpu", model_kwargs=_SAFE)
    scores = model.predict([tuple(item) for item in items], show_progress_bar=False)
    return [{"score": float(score)} for score in scores.reshape(-1)]


def _pipeline(task: str, folder: str, **options: Any) -> Any:
    return importlib.import_module("transformers").pipeline(
        task, model=folder, tokenizer=folder, device="cpu", model_kwargs=_SAFE, **options
    )


_FUNCTIONS: dict[tuple[str, str], Callable[..., list[Any]]] = {
    ("transformers", "classify"): _classify,
    ("transformers", "entities"): _find_entities,
    ("gliner", "entities"): _find_any_entities,
    ("sentence_transformers", "embed"): _embed,
    ("sentence_transformers", "rerank"): _rank,
    ("model2vec", "embed"): _embed_static,
}


def _run(given: dict[str, Any]) -> dict[str, Any]:
    function = _FUNCTIONS[given["library"], given["task"]]
    try:
        return {"results": function(given["folder"], given["items"], **given["options"])}
    except ImportError as error:
        return {"missing": error.name or str(error)}
    except Exception as error:  # noqa: BLE001 - the libraries raise many types of errors
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return {"failed": reason[0]}


if __name__ == "__main__":
    # What a library prints, also at the end of this process, goes to standard error.
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        output.write("\n" + json.dumps(_run(json.load(sys.stdin))) + "\n")
