"""Tests what the fuzzers take for a right answer, and what their backend answers."""

import json
import random
from typing import Any

import msgspec
import pytest

from loadtests.backend import call
from loadtests.fuzz_dialects.backend import models, outcome
from loadtests.fuzz_http.bodies import body
from loadtests.fuzz_http.expect import ExpectedResponse, UnexpectedResponse, judge
from sluicegate.wire.protocol import Call, Done, EmbedParameters, Failed, Task
from testing.raw_http import Response

EXPECT = ExpectedResponse(
    name="plain", statuses={200}, scope="tenant", texts=("one", "two"), is_inference=True
)


def labelled(text: str) -> dict[str, Any]:
    return {"labels": [{"label": f"tenant|{text}", "score": 1.0}]}


def failed(code: str) -> dict[str, Any]:
    return {"error": {"code": code, "detail": "It failed."}}


def answer(*results: dict[str, Any]) -> Response:
    body = json.dumps({"results": results}).encode()
    return Response(status=200, headers={"x-request-id": "req_1"}, body=body)


def test_each_item_has_its_own_answer() -> None:
    assert judge(EXPECT, answer(labelled("one"), labelled("two"))) == 200


def test_an_item_that_was_refused_counts_as_a_refusal() -> None:
    assert judge(EXPECT, answer(failed("overloaded"), labelled("two"))) == 503


def test_no_item_fails_where_the_body_does_not_say_that_it_goes_on() -> None:
    expect = msgspec.structs.replace(EXPECT, continues=False)

    with pytest.raises(UnexpectedResponse, match="an item failed"):
        judge(expect, answer(failed("overloaded"), labelled("two")))


@pytest.mark.parametrize("result", [{}, {"labels": []}])
def test_a_result_without_labels_is_none_even_where_the_texts_are_not_known(
    result: dict[str, Any],
) -> None:
    expect = msgspec.structs.replace(EXPECT, texts=None)

    assert judge(expect, answer(labelled("one"))) == 200
    with pytest.raises(UnexpectedResponse, match="crossed"):
        judge(expect, answer(result))


@pytest.mark.parametrize("seed", range(3))
def test_bodies_say_whether_they_go_on(seed: int) -> None:
    chance = random.Random(seed)
    bodies = [body(chance, str(number)) for number in range(100)]

    said = [json.loads(sent.content).get("on_error") == "continue" for sent in bodies]

    assert said == [sent.continues for sent in bodies]
    assert any(said)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([labelled("two"), labelled("one")], "crossed"),
        ([failed("overloaded"), labelled("one")], "crossed"),
        ([failed("internal_error"), labelled("two")], "an item failed"),
        ([labelled("one")], "1 results of 2"),
    ],
)
def test_what_is_not_right_is_found(results: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UnexpectedResponse, match=message):
        judge(EXPECT, answer(*results))


@pytest.mark.parametrize(
    ("dimensions", "kind"), [(None, Done), (1024, Done), (1025, Failed), (2**63 - 1, Failed)]
)
def test_the_backend_refuses_too_many_dimensions(dimensions: int | None, kind: type) -> None:
    sent = call(
        ["text"], models()[0], task=Task.EMBED, parameters=EmbedParameters(dimensions=dimensions)
    )

    assert isinstance(outcome(msgspec.msgpack.decode(sent, type=Call), 0), kind)
