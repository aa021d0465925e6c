"""Predicted work grows with what a caller asks for, so no caller teaches others a wrong ratio."""

import msgspec
import pytest

from sluicegate.backends.serving.work_estimates import predict_work
from sluicegate.wire.protocol import (
    AnswerItem,
    AnswerParameters,
    Call,
    CallItem,
    EntitiesParameters,
    ModelInfo,
    Parameters,
    Task,
    ZeroShotParameters,
)

_encode = msgspec.msgpack.encode
_TEXT = "word " * 600


def predicted(task: Task, parameters: Parameters, item: object, *, words: int = 0) -> float:
    """Return the predicted tokens of an item, all rows together."""
    info = ModelInfo(
        name="m",
        revision="1",
        profile="fp32",
        tasks=[task],
        algorithm="classifier",
        algorithm_version=1,
        max_tokens=256,
        max_words=words,
    )
    call = Call(
        model="m",
        revision="1",
        profile="fp32",
        task=task,
        parameters=_encode(parameters),
        items=[CallItem(body=_encode(item), remaining=1.0, scope="")],
    )
    (found,) = predict_work(call, info, float)
    return found


@pytest.mark.parametrize(
    ("parameters", "least"),
    [
        (AnswerParameters(max_row_tokens=128, overlap=120), 3.0),
        (AnswerParameters(max_row_tokens=32, overlap=16), 1.4),
    ],
)
def test_overlap_and_short_rows_of_answers_are_predicted(
    parameters: AnswerParameters, least: float
) -> None:
    item = AnswerItem(question="Who?", context=_TEXT)
    plain = predicted(Task.ANSWER, AnswerParameters(max_row_tokens=128, overlap=8), item)

    assert predicted(Task.ANSWER, parameters, item) > least * plain


def test_labels_of_entities_are_predicted() -> None:
    few, many = (
        predicted(Task.ENTITIES, EntitiesParameters(labels=labels), _TEXT)
        for labels in (["city"], [f"a long label {number}" for number in range(40)])
    )

    assert many > 2 * few


def test_relations_of_a_text_are_predicted_as_rows_of_their_own() -> None:
    alone = predicted(Task.ENTITIES, EntitiesParameters(labels=["city"]), _TEXT)

    parameters = EntitiesParameters(labels=["city"], relations=["knows"])
    both = predicted(Task.ENTITIES, parameters, _TEXT)

    assert both == pytest.approx(2 * alone, rel=0.1)


def test_labels_that_are_read_at_once_are_one_row() -> None:
    parameters = ZeroShotParameters(labels=["one", "two", "three", "four"])
    apart, together = (
        predicted(Task.ZERO_SHOT, parameters, "a short text", words=words) for words in (0, 128)
    )

    assert apart == 4 * predicted(Task.CLASSIFY, Parameters(), "a short text")
    assert together < 4 * apart


def test_unreadable_parameters_are_predicted_by_the_bytes_of_the_text() -> None:
    found = predicted(Task.ANSWER, EntitiesParameters(labels=["a"]), "a text")

    assert found == predicted(Task.CLASSIFY, Parameters(), "a text")
