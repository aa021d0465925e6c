"""Spans become answers: equal texts are one, and nothing outside of the context is any."""

from typing import Any

import numpy as np
import pytest

from sluicegate.backends.algorithms.answering import find_answers
from sluicegate.backends.pipelines.encoder import QuestionWindow
from sluicegate.backends.types import PlacedTokens
from sluicegate.wire.protocol import AnswerParameters

# Two words, of which the second has two tokens.
CONTEXT = "ab cdef"
TOKENS = PlacedTokens(
    ids=np.array([7, 8, 9], np.int32),
    places=np.array([[0, 2], [3, 5], [5, 7]], np.int32),
    words=np.array([0, 1, 1], np.int32),
)
FAR = -50.0


def window(
    starts: list[float],
    ends: list[float],
    *,
    start: int = 0,
    end: int = 3,
    marks: tuple[int, ...] = (0,),
) -> QuestionWindow:
    """Return a window of a row: a marked token, a question of one token, and the context."""
    outputs = np.array([starts, ends], np.float32).T
    is_marked = np.isin(np.arange(len(starts)), marks)
    return QuestionWindow(start=start, end=end, place=2, is_marked=is_marked, outputs=outputs)


def answers(*windows: QuestionWindow, context: str = CONTEXT, **given: Any) -> dict[str, Any]:
    return find_answers(context, TOKENS, list(windows), AnswerParameters(**given))


def test_an_answer_of_a_part_of_a_word_is_the_word() -> None:
    one = window([FAR, FAR, FAR, FAR, 9.0], [FAR, FAR, FAR, FAR, 9.0])

    assert answers(one)["answers"][0]["answer"] == "cdef"
    assert answers(one, align_to_words=False)["answers"][0]["answer"] == "ef"


def test_spans_of_the_same_text_are_one_answer() -> None:
    half = window([FAR, FAR, FAR, 5.0, 5.0], [FAR, FAR, FAR, FAR, 5.0])

    (found,) = answers(half)["answers"]

    assert (found["answer"], found["start"], found["end"]) == ("cdef", 3, 7)
    assert found["score"] == pytest.approx(1.0)


def test_texts_that_differ_in_case_are_one_answer_at_the_first_place() -> None:
    first = window([FAR, FAR, 5.0, FAR, FAR], [FAR, FAR, 5.0, FAR, FAR])
    second = window([FAR, FAR, 5.0, FAR], [FAR, FAR, FAR, 5.0], start=1)

    (found, *_) = answers(first, second, context="ab " + "AB  ")["answers"]

    assert (found["answer"], found["start"]) == ("ab", 0)


def test_the_least_of_all_windows_says_that_there_is_no_answer() -> None:
    sure = window([9.0, FAR, FAR, FAR, FAR], [9.0, FAR, FAR, FAR, FAR])
    unsure = window([0.0, FAR, 0.0, FAR, FAR], [0.0, FAR, 0.0, FAR, FAR])

    assert answers(sure)["no_answer_score"] == pytest.approx(1.0)
    assert answers(sure, unsure)["no_answer_score"] == pytest.approx(0.25)


def test_a_marked_token_of_the_question_is_no_answer() -> None:
    asked = window([0.0, 9.0, 0.0, FAR, FAR], [0.0, 9.0, 0.0, FAR, FAR], marks=(0, 1))

    (found, *_) = answers(asked)["answers"]

    assert found["answer"] == "ab"
    assert found["score"] < 0.01


@pytest.mark.parametrize("marks", [(), (0,)])
def test_a_context_without_tokens_has_no_answers(marks: tuple[int, ...]) -> None:
    none = window([5.0, 1.0], [5.0, 1.0], end=0, marks=marks)

    found = answers(none, context=" ")

    assert found == {"answers": [], "no_answer_score": float(len(marks))}


def test_an_answer_has_at_most_so_many_tokens() -> None:
    whole = window([FAR, FAR, 9.0, 0.0, FAR], [FAR, FAR, FAR, 5.0, 9.0])

    assert answers(whole)["answers"][0]["answer"] == CONTEXT
    assert answers(whole, max_answer_tokens=2, align_to_words=False)["answers"][0]["end"] == 5


def test_the_best_spans_are_those_of_a_comparison_of_all() -> None:
    words, width, most = 60, 7, 9
    context = " ".join(f"w{number}" for number in range(words))
    ends = np.cumsum([len(word) + 1 for word in context.split()]) - 1
    places = np.array([[0, *(ends[:-1] + 1)], ends], np.int32).T
    numbers = np.arange(words, dtype=np.int32)
    tokens = PlacedTokens(ids=numbers, places=places, words=numbers)
    drawn = np.random.default_rng(7).standard_normal((2, words + 2))
    one = window(drawn[0].tolist(), drawn[1].tolist(), end=words)

    found = find_answers(
        context,
        tokens,
        [one],
        AnswerParameters(top_k=most, max_answer_tokens=width, align_to_words=False),
    )

    sums = {
        (first, last): drawn[0, first + 2] + drawn[1, last + 2]
        for first in range(words)
        for last in range(first, min(first + width, words))
    }
    best = sorted(sums, key=lambda span: -sums[span])[:most]
    assert [(answer["start"], answer["end"]) for answer in found["answers"]] == [
        (places[first, 0], places[last, 1]) for first, last in best
    ]
