"""Each task is shown on those examples of a card that it can answer, and asked over HTTP alike."""

import json
import shlex
from typing import Any

import msgspec
import pytest

from sluicegate.backends.model_tools.trials.card import CardInput
from sluicegate.backends.model_tools.trials.examples import (
    AnsweredExample,
    Example,
    choose_examples,
)
from sluicegate.backends.model_tools.trials.showing import curl, describe_results, request_body
from sluicegate.gateway.api.schemas import BODIES
from sluicegate.wire.protocol import TOKEN_TASKS, ModelInfo, Task

BODY_OF = {body.task: body for body in BODIES}
EXAMPLE_TASKS = [task for task in BODY_OF if task not in (*TOKEN_TASKS, Task.INFER)]
CARD = [
    CardInput(source="widget", texts=["Paris is nice.", "It rains."], labels=["city"]),
    CardInput(source="code", pairs=[("q", "a"), ("q", "b"), ("other", "c")]),
    CardInput(source="code", question="Who?", context="She did."),
]


def info(*tasks: Task, **fields: Any) -> ModelInfo:
    given: dict[str, Any] = {
        "name": "m",
        "revision": "r",
        "profile": "fp32",
        "algorithm": "a",
        "max_tokens": 64,
    }
    return ModelInfo(**given, algorithm_version=1, tasks=list(tasks), **fields)


@pytest.mark.parametrize(
    ("task", "labels", "items", "parameters"),
    [
        (Task.EMBED, None, ["Paris is nice.", "It rains."], {}),
        (Task.ENTITIES, ["O", "B-LOC"], ["Paris is nice.", "It rains."], {}),
        (Task.ENTITIES, None, ["Paris is nice.", "It rains."], {"labels": ["city"]}),
        (Task.ZERO_SHOT, ["entailment"], ["Paris is nice.", "It rains."], {"labels": ["city"]}),
        (Task.RERANK, ["relevant"], ["a", "b"], {"query": "q"}),
    ],
)
def test_a_task_takes_its_examples_of_a_card(
    task: Task, labels: list[str] | None, items: list[str], parameters: dict[str, Any]
) -> None:
    example = choose_examples(info(task, labels=labels), CARD)[0]

    assert (example.items, example.parameters) == (items, parameters)


@pytest.mark.parametrize("task", EXAMPLE_TASKS)
@pytest.mark.parametrize("card", [[], CARD])
def test_a_request_for_an_example_is_one_that_the_api_takes(
    task: Task, card: list[CardInput]
) -> None:
    labels = ["entailment"] if task is Task.ZERO_SHOT else None
    tasks = (Task.CLASSIFY, task) if task is Task.ZERO_SHOT else (task,)
    for example in choose_examples(info(*tasks, labels=labels), card):
        body = msgspec.convert(request_body(example, "m"), BODY_OF[example.task])

        assert len(body.items()) == len(example.items)


def test_an_example_that_a_card_has_twice_is_shown_once() -> None:
    twice = [CardInput(source=source, texts=["Paris is nice."]) for source in ("widget", "code")]

    (example,) = choose_examples(info(Task.EMBED), twice)

    assert example.source == "widget"


def test_a_model_that_only_other_models_use_is_not_shown() -> None:
    assert choose_examples(info(), CARD) == []


def test_a_model_without_a_dense_vector_is_asked_for_what_it_has() -> None:
    (example,) = choose_examples(info(Task.EMBED, outputs=["multi_vector"]), CARD)

    assert request_body(example, "m")["outputs"] == ["multi_vector"]


def test_quotes_in_a_text_are_safe_in_a_shell() -> None:
    example = Example(task=Task.CLASSIFY, items=['it\'s "$HOME"'], source="card")

    words = shlex.split(curl(example, "m"))

    assert json.loads(words[-1])["input"] == ['it\'s "$HOME"']


@pytest.mark.parametrize(
    ("task", "item", "result", "shown"),
    [
        (Task.CLASSIFY, "a", {"labels": [{"label": "good", "score": 0.75}]}, '"a": good 0.7500'),
        (Task.CLASSIFY, "a", {"error": "it is too long"}, '"a": it is too long'),
        (Task.ENTITIES, "a", {"entities": []}, '"a": no entity'),
        (
            Task.ENTITIES,
            "a" * 99,
            {"entities": [{"text": "a", "label": "x", "score": 0.5, "start": 0, "end": 1}]},
            f'"{"a" * 57}...": a (x 0.50)',
        ),
        (Task.EMBED, "a\nb", {"embedding": [0.6, 0.8]}, '"a b": [0.600, 0.800, ...] of 2 numbers'),
        (Task.EMBED, "a", {"multi_vector": [[1.0], [0.0]]}, '"a": 2 vectors'),
    ],
)
def test_results_are_shown_on_a_line_each(
    task: Task, item: str, result: dict[str, Any], shown: str
) -> None:
    example = Example(task=task, items=[item], source="`widget` in README.md")

    lines = describe_results(AnsweredExample(example=example, results=[result]))

    assert lines == [f"{task} (`widget` in README.md)", f"  {shown}"]


def test_ranked_documents_are_shown_best_first() -> None:
    example = Example(task=Task.RERANK, items=["a", "b"], parameters={"query": "q"}, source="card")

    lines = describe_results(AnsweredExample(example=example, results=[{"score": 1}, {"score": 2}]))

    assert lines == ['rerank "q" (card)', '  2.0000 "b"', '  1.0000 "a"']
