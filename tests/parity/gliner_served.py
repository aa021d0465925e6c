"""Imports checkpoints of `gliner` and `gliner2`, and compares what is served with their answers.

`python -m tests.parity.gliner_served FOLDER` prints a line for each checkpoint.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from sluicegate.wire.protocol import Done, EntitiesParameters, Task, ZeroShotParameters
from tests.parity.gliner_answers import (
    Asked,
    Found,
    GlinerAnswers,
    Related,
    descriptions,
    read_answers,
)
from tests.parity.library_served import import_folder
from tests.support.backend_calls import Backend, running_backend

_TOLERANCE = 1e-4
_Answer = TypeVar("_Answer")


async def compare_folder(folder: Path, models: Path) -> tuple[int, list[str]]:
    """Import and serve a checkpoint.

    Ask each question alone, and then all questions at once. Return the number of entities, and a
    line for each question with another answer than the library's.
    """
    refused = await asyncio.to_thread(import_folder, folder, models)
    assert refused is None, refused
    expected = read_answers(folder)
    lines, entities = [], 0
    for way, right, scores, relations in (
        ("alone", expected.alone, expected.scores, expected.relations),
        ("batched", expected.batched, expected.batched_scores, expected.batched_relations),
    ):
        # Each way has its own backend, because a backend caches all rows.
        async with running_backend(models, threads=1, max_queue_rows=8192) as backend:
            asks = [_ask(backend, folder.name, asked) for asked in expected.asked]
            labels = [_labels(backend, folder.name, each) for each in expected.asked[: len(scores)]]
            related = [
                _relations(backend, folder.name, each) for each in expected.asked[: len(relations)]
            ]
            at_once = way == "batched"
            found = await _all(asks, at_once=at_once)
            named = await _all(labels, at_once=at_once)
            pairs = await _all(related, at_once=at_once)
        entities += sum(map(len, found))
        lines += _apart(way, expected.asked, found, right)
        lines += _related_apart(way, expected.asked, pairs, relations)
        lines += _scored_apart(way, expected.asked, named, scores)
    if expected.described:
        lines += await _compare_described(models, folder.name, expected)
    return entities // 2, lines


async def _compare_described(models: Path, name: str, expected: GlinerAnswers) -> list[str]:
    """Return a line for each question with another answer, if labels have descriptions."""
    asked = expected.asked[: len(expected.described)]
    async with running_backend(models, threads=1, max_queue_rows=8192) as backend:
        found = [await _ask(backend, name, each, descriptions(each)) for each in asked]
        related = [await _relations(backend, name, each, descriptions(each)) for each in asked]
    return [
        *_apart("described", asked, found, expected.described),
        *_related_apart("described", asked, related, expected.described_relations),
    ]


async def _all(asks: Sequence[Coroutine[Any, Any, _Answer]], *, at_once: bool) -> list[_Answer]:
    return await asyncio.gather(*asks) if at_once else [await ask for ask in asks]


async def _ask(
    backend: Backend, model: str, asked: Asked, described: dict[str, str] | UnsetType = UNSET
) -> list[Found]:
    parameters = EntitiesParameters(
        labels=asked.labels,
        threshold=asked.threshold,
        flat=asked.flat,
        # In `gliner2`, entities of different types do not exclude each other.
        multi_label=asked.multi_label or UNSET,
        descriptions=described,
    )
    (outcome,) = await backend.ask(model, Task.ENTITIES, [asked.text], parameters=parameters)
    assert isinstance(outcome, Done), outcome
    answer = msgspec.json.decode(outcome.result)
    assert all(e["text"] == asked.text[e["start"] : e["end"]] for e in answer["entities"])
    return [(e["label"], e["start"], e["end"], e["score"]) for e in answer["entities"]]


async def _relations(
    backend: Backend, model: str, asked: Asked, described: dict[str, str] | UnsetType = UNSET
) -> list[Related]:
    parameters = EntitiesParameters(
        relations=asked.labels, threshold=asked.threshold, descriptions=described
    )
    (outcome,) = await backend.ask(model, Task.ENTITIES, [asked.text], parameters=parameters)
    assert isinstance(outcome, Done), outcome
    answer = msgspec.json.decode(outcome.result)
    assert answer["entities"] == []
    return [
        (
            each["label"],
            *(each["head"][key] for key in ("start", "end", "score")),
            *(each["tail"][key] for key in ("start", "end", "score")),
        )
        for each in answer["relations"]
    ]


async def _labels(backend: Backend, model: str, asked: Asked) -> list[float]:
    """Return the score of each label for a whole text."""
    parameters = ZeroShotParameters(labels=asked.labels, multi_label=asked.multi_label)
    (outcome,) = await backend.ask(model, Task.ZERO_SHOT, [asked.text], parameters=parameters)
    assert isinstance(outcome, Done), outcome
    found = {e["label"]: e["score"] for e in msgspec.json.decode(outcome.result)["labels"]}
    return [found[label] for label in asked.labels]


def _apart(
    way: str,
    asked: Sequence[Asked],
    served: Sequence[list[Found]],
    expected: Sequence[list[Found]],
) -> list[str]:
    """Return a line for each answer with other spans, another order, or other scores."""
    lines = []
    for question, found, right in zip(asked, served, expected, strict=True):
        if [each[:3] for each in found] != [each[:3] for each in right]:
            one = [each for each in found if each[:3] not in {r[:3] for r in right}][:2]
            other = [each for each in right if each[:3] not in {f[:3] for f in found}][:2]
            lines.append(f"{way}: {question.text[:40]!r}: {one} instead of {other}")
        elif (
            right and max(abs(f[3] - r[3]) for f, r in zip(found, right, strict=True)) > _TOLERANCE
        ):
            lines.append(f"{way}: {question.text[:40]!r}: scores")
    return lines


def _places(related: Related) -> tuple[str, int, int, int, int]:
    label, start, end, _, first, last, _ = related
    return label, start, end, first, last


def _related_apart(
    way: str,
    asked: Sequence[Asked],
    served: Sequence[list[Related]],
    expected: Sequence[list[Related]],
) -> list[str]:
    """Return a line for each text with other relations, another order, or other scores."""
    return [
        f"{way}: {question.text[:40]!r}: {found[:2]} instead of {right[:2]}"
        for question, found, right in zip(asked, served, expected, strict=False)
        if [_places(each) for each in found] != [_places(each) for each in right]
        or any(
            max(abs(one[3] - other[3]), abs(one[6] - other[6])) > _TOLERANCE
            for one, other in zip(found, right, strict=True)
        )
    ]


def _scored_apart(
    way: str,
    asked: Sequence[Asked],
    served: Sequence[list[float]],
    expected: Sequence[list[float]],
) -> list[str]:
    """Return a line for each text whose labels have other scores."""
    return [
        f"{way}: {question.text[:40]!r}: the labels have {found} instead of {right}"
        for question, found, right in zip(asked, served, expected, strict=False)
        if max(abs(one - other) for one, other in zip(found, right, strict=True)) > _TOLERANCE
    ]


def main() -> None:
    """Compare the checkpoints of a folder; fail where one differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    differs = False
    for folder in sorted(path for path in given.folder.iterdir() if path.is_dir()):
        with tempfile.TemporaryDirectory() as models:
            entities, apart = asyncio.run(compare_folder(folder, Path(models)))
        sys.stdout.write(f"{folder.name}: {entities} entities, {len(apart)} answers differ\n")
        sys.stdout.writelines(f"  {line}\n" for line in apart)
        differs = differs or bool(apart)
    if differs:
        sys.exit("answers differ")


if __name__ == "__main__":
    main()
