"""Real models are judged by the answers that they gave before any fault."""

import msgspec
import pytest

from loadtests.faults.recorded import RecordedAnswers
from loadtests.faults.topology import Question, TopologyError


def test_numbers_may_be_rounded_otherwise_and_labels_may_not_differ() -> None:
    recorded = RecordedAnswers()
    good = {"labels": [{"label": "positive", "score": 0.75}]}
    body = {"model": "m", "results": [good], "usage": {"items": 1}}
    recorded.learn("/v1/classify", "m", ["text"], msgspec.json.encode(body))
    question = Question(path="/v1/classify", body=b'{"model": "m", "input": ["text"]}')

    def is_right(label: str, score: float, items: int = 1, model: str = "m") -> bool:
        result = {"labels": [{"label": label, "score": score}]}
        answer = {"model": model, "results": [result], "usage": {"items": items}}
        return recorded.is_right(question, msgspec.json.encode(answer))

    assert is_right("positive", 0.75001)
    assert not is_right("positive", 0.76)
    assert not is_right("negative", 0.75)
    assert not is_right("positive", 0.75, items=2)
    assert not is_right("positive", 0.75, model="n")
    assert not recorded.is_right(question, b"<html>")


def test_answers_that_differ_before_any_fault_are_no_measure() -> None:
    recorded = RecordedAnswers()
    recorded.learn("/v1/embed", "m", ["text"], b'{"results": [{"embedding": [0.5]}]}')

    with pytest.raises(TopologyError, match="differ"):
        recorded.learn("/v1/embed", "m", ["text"], b'{"results": [{"embedding": [0.6]}]}')
