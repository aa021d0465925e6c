"""Bad and odd input, task by task: answered as the reference pipelines answer, or refused."""

import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from sluicegate.wire.protocol import (
    ClassifyParameters,
    Done,
    EmbedParameters,
    EntitiesParameters,
    Failed,
    Parameters,
    RerankParameters,
    Task,
    ZeroShotParameters,
)
from testing.model_repository import write_head, write_model, write_repository
from tests.support.backend_calls import Backend, running_backend

pytestmark = pytest.mark.anyio
PAIRWISE = ("zero-shot-entailment", "multiple-choice", "cross-encoder")
# Odd, but texts: every model answers them.
ODD = {
    "emoji": "👩‍👩‍👧 is good 😀😀",
    "right to left": "שלום the film مرحبا",
    "control characters": "good\x00\x07 film\x1b[0m",
    "bidirectional marks": "\u202egood\u202c film",
    "combining marks": "cafe\u0301 i\u0308s good",
    "one character": "x",
    "lone punctuation": "!",
    "braces": "{} {0} {label}",
    "special tokens": "[CLS] good [SEP] film [PAD]",
    "line breaks": "good\r\n\tfilm\u2028bad",
    "unassigned": "good \U000e0fff film",
}
EMPTY = {"nothing": "", "blanks": " \n\t", "ideographic space": "\u3000"}


def labels(*names: str, template: str = "about {}", multi: bool = False) -> ZeroShotParameters:
    return ZeroShotParameters(labels=list(names), hypothesis_template=template, multi_label=multi)


def refused() -> Iterator[tuple[str, str, Task, Any, Parameters, str]]:
    for model in ("topics", "zero-shot-entailment"):
        for said, parameters, code in (
            ("no labels", labels(), "no_labels"),
            ("duplicate labels", labels("film", "film"), "duplicate_labels"),
            ("an empty label", labels("film", ""), "empty_label"),
            ("a blank label", labels("film", " \t"), "empty_label"),
            ("thousands of labels", labels(*map(str, range(3000))), "too_many_labels"),
            ("a template without a slot", labels("film", template="about"), "bad_template"),
            ("a template with two", labels("film", template="{} {}"), "bad_template"),
            ("an empty template", labels("film", template=""), "bad_template"),
        ):
            yield f"{model}: {said}", model, Task.ZERO_SHOT, "good", parameters, code
        for said, text in EMPTY.items():
            yield f"{model}: {said}", model, Task.ZERO_SHOT, text, labels("film"), "empty_input"
        many = "good " * 60
        yield f"{model}: too long", model, Task.ZERO_SHOT, many, labels("film"), "input_too_long"
        long = labels("film " * 60)
        yield f"{model}: a long label", model, Task.ZERO_SHOT, "good", long, "input_too_long"
    for said, text in EMPTY.items():
        yield f"classify: {said}", "mood", Task.CLASSIFY, text, ClassifyParameters(), "empty_input"
        yield f"embed: {said}", "tiny", Task.EMBED, text, EmbedParameters(), "empty_input"
        yield f"names: {said}", "names", Task.ENTITIES, text, EntitiesParameters(), "empty_input"
        yield (
            f"rerank: {said}",
            "tiny",
            Task.RERANK,
            text,
            RerankParameters(query="a"),
            "empty_input",
        )
    pair = ("", " ")
    yield "an empty pair", "mood", Task.CLASSIFY, pair, ClassifyParameters(), "empty_input"
    query = RerankParameters(query="")
    yield "an empty query", "tiny", Task.RERANK, "good", query, "empty_input"


@pytest.fixture(scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    models = write_repository(tmp_path_factory.mktemp("bad-input") / "models", real=True)
    write_head(models, "nli", ["contradiction", "neutral", "entailment"])
    tasks = ("zero-shot", "choose", "rerank")
    for name, task in zip(PAIRWISE, tasks, strict=True):
        manifest = {"kind": "algorithm", "algorithm": name, "uses": ["nli"], "tasks": [task]}
        write_model(models, name, manifest)
    async with running_backend(models) as running:
        yield running


@pytest.mark.parametrize(
    ("model", "task", "item", "parameters", "code"),
    [pytest.param(*case[1:], id=case[0]) for case in refused()],
)
async def test_refused_by_code(
    backend: Backend, model: str, task: Task, item: Any, parameters: Any, code: str
) -> None:
    (outcome,) = await backend.ask(model, task, [item], parameters=parameters)

    assert isinstance(outcome, Failed), outcome
    assert (outcome.status, outcome.code, outcome.retryable) == (422, code, False)


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize(
    ("model", "task", "parameters"),
    [
        ("mood", Task.CLASSIFY, ClassifyParameters()),
        ("topics", Task.ZERO_SHOT, labels("film", "😀")),
        ("zero-shot-entailment", Task.ZERO_SHOT, labels("film", "שלום", multi=True)),
        ("zero-shot-entailment", Task.ZERO_SHOT, labels("only one")),
        ("tiny", Task.EMBED, EmbedParameters()),
        ("tiny", Task.RERANK, RerankParameters(query="a\u0301 😀")),
        ("cross-encoder", Task.RERANK, RerankParameters(query="")),
        ("names", Task.ENTITIES, EntitiesParameters(aggregation="first")),
    ],
)
async def test_odd_texts_are_answered_with_numbers(
    backend: Backend, model: str, task: Task, parameters: Any, text: str
) -> None:
    (outcome,) = await backend.ask(model, task, [text], parameters=parameters)

    assert isinstance(outcome, Done), outcome
    answer = msgspec.json.decode(outcome.result)
    assert all(math.isfinite(number) for number in numbers(answer))
    for entity in answer.get("entities", []):
        assert text[entity["start"] : entity["end"]] == entity["text"]


async def test_one_label_is_certain_where_labels_compete(backend: Backend) -> None:
    answer = await backend.answer("topics", Task.ZERO_SHOT, "good", parameters=labels("film"))

    assert answer == {"labels": [{"label": "film", "score": 1.0}]}


@pytest.mark.parametrize("model", ["topics", "multiple-choice"])
async def test_lists_of_choices_may_differ_in_size(backend: Backend, model: str) -> None:
    items = [
        {"prompt": "good", "choices": choices}
        for choices in (["film"], ["film", "card", "money"], [], ["a"] * 257, ["film", "film"])
    ]

    outcomes = await backend.ask(model, Task.CHOOSE, items)

    codes = [o.code if isinstance(o, Failed) else "" for o in outcomes]
    assert codes == ["", "", "no_choices", "too_many_choices", ""]
    sizes = [len(msgspec.json.decode(o.result)["scores"]) for o in outcomes if isinstance(o, Done)]
    assert sizes == [1, 3, 2]


async def test_equal_choices_are_equally_good(backend: Backend) -> None:
    item = {"prompt": "good", "choices": ["film", "film"]}

    for model in ("topics", "multiple-choice"):
        answer = await backend.answer(model, Task.CHOOSE, item)
        assert answer == {"choice": 0, "scores": [0.5, 0.5]}


def numbers(answer: Any) -> Iterator[float]:
    """Yield every number of an answer."""
    if isinstance(answer, dict):
        for value in answer.values():
            yield from numbers(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from numbers(value)
    elif isinstance(answer, int | float):
        yield answer
