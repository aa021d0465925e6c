"""A call is sent again while that may help and its time allows, and no longer."""

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate import (
    Answer,
    Conflict,
    DeadlineExceeded,
    InvalidItem,
    Labels,
    NoAnswer,
    NotCached,
    Options,
    RateLimited,
    Unavailable,
)
from sluicegate.client import routes
from sluicegate.client.base_client import BaseClient
from sluicegate.client.calls import Outcome, exchange
from sluicegate.client.errors import error_of
from tests.support.clock import Clock

CALL = routes.classify("sentiment", ["a"])
ANSWER = {
    "model": "sentiment",
    "revision": "9f2c",
    "results": [{"labels": [{"label": "positive", "score": 0.98}], "of_a_later_gateway": 1}],
    "usage": {"items": 1, "hit": 1},
}


def response(status: int, content: Any, **headers: str) -> httpx.Response:
    kind = "application/json" if status < 400 else "application/problem+json"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(
        status,
        content=msgspec.json.encode(content),
        headers={"content-type": kind} | named,
        request=httpx.Request("POST", "http://gateway"),
    )


def problem(status: int, code: str, **headers: str) -> httpx.Response:
    return response(status, {"code": code, "detail": "Why.", "index": 0}, **headers)


HTTP = httpx.Client()  # it builds requests and is never connected
LOST = httpx.ReadError("reset")
BUSY = problem(503, "overloaded", retry_after_ms="250", retry_after="1")


class Run:
    """Answers each request of one call with the next outcome, at a clock of its own."""

    def __init__(
        self, *outcomes: Outcome, latency: float = 0.0, oversleep: float = 0.0, **options: Any
    ) -> None:
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []
        self._outcomes: Iterator[Outcome] = iter(outcomes)
        self._latency = latency
        self._oversleep = oversleep
        self._options = Options(**options)

    def answer(self, call: Any = CALL) -> Any:
        clock = Clock()
        client = BaseClient(HTTP, is_own=True, url="http://g", key="sk-1", options=None)
        steps = exchange(call, self._options, client._request, clock)
        outcome: Outcome = None
        try:
            while True:
                step = steps.send(outcome)
                if isinstance(step, float):
                    self.pauses.append(step)
                    clock.advance(step + self._oversleep)
                    outcome = None
                else:
                    self.requests.append(step)
                    clock.advance(self._latency)
                    outcome = next(self._outcomes)
        except StopIteration as done:
            return done.value

    def sent(self, header: str) -> list[str | None]:
        return [request.headers.get(header) for request in self.requests]


def test_an_answer_is_typed_and_says_what_its_headers_say() -> None:
    answered = response(200, ANSWER, x_request_id="req_1", cache_status="sluicegate; hit")

    answer: Answer[Labels] = Run(answered).answer()

    assert answer.results[0].labels[0].label == "positive"
    assert answer.results[0].error is None
    assert (answer.usage.hit, answer.usage.rows) == (1, 0)
    assert (answer.request_id, answer.cache_status) == ("req_1", "sluicegate; hit")


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_what_may_pass_is_sent_again(status: int) -> None:
    run = Run(problem(status, "whatever"), response(200, ANSWER))

    assert run.answer().model == "sentiment"
    assert len(run.requests) == 2


def test_a_lost_connection_is_sent_again_under_the_same_idempotency_key() -> None:
    run = Run(LOST, LOST, response(200, ANSWER))

    run.answer()

    (key,) = set(run.sent("idempotency-key"))
    assert key
    assert 0.05 <= run.pauses[0] <= 0.1 <= run.pauses[1] <= 0.2


def test_each_call_has_an_idempotency_key_of_its_own_unless_nothing_is_sent_again() -> None:
    runs = [Run(response(200, ANSWER), **more) for more in ({}, {}, {"retries": 0})]
    runs.append(Run(response(200, ANSWER), idempotency=False))

    for run in runs:
        run.answer()

    first, second, *without = [run.sent("idempotency-key")[0] for run in runs]
    assert None is not first != second is not None
    assert without == [None, None]


def test_without_a_store_of_keys_the_gateway_is_asked_without_one() -> None:
    away = problem(503, "dependency_unavailable", retry_after_ms="10")
    settled, lost = Run(away, response(200, ANSWER)), Run(LOST, away, response(200, ANSWER))

    settled.answer()
    lost.answer()

    first, second = settled.sent("idempotency-key")
    assert first is not None
    assert second is None
    # What was lost may have been billed: the key is kept.
    assert len(set(lost.sent("idempotency-key"))) == 1


def test_a_pause_is_as_long_as_the_gateway_asks_for() -> None:
    run = Run(BUSY, problem(429, "rate_limited", retry_after="2"), response(200, ANSWER))

    run.answer()

    assert run.pauses == [0.25, 2.0]


def test_the_gateway_is_told_what_is_left_of_the_time() -> None:
    run = Run(BUSY, LOST, response(200, ANSWER), timeout=5.0, latency=1.0)

    run.answer()

    first, second, third = (float(sent or 0) for sent in run.sent("x-request-timeout"))
    assert (first, second) == (5.0, 3.75)
    assert 2.5 <= third <= 2.75
    assert [request.extensions["timeout"]["read"] for request in run.requests][:2] == [6.0, 4.75]


def test_a_pause_that_outlasts_the_time_is_not_begun() -> None:
    run = Run(problem(429, "rate_limited", retry_after="60"), timeout=30.0)

    with pytest.raises(RateLimited) as caught:
        run.answer()

    assert caught.value.retry_after == 60.0
    assert run.pauses == []


def test_the_last_error_is_raised() -> None:
    run = Run(LOST, BUSY, retries=1)

    with pytest.raises(Unavailable):
        run.answer()


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (problem(422, "invalid_item"), InvalidItem),
        (problem(429, "rate_limited", x_should_retry="false"), RateLimited),
        (problem(504, "not_cached"), NotCached),
    ],
)
def test_what_cannot_pass_is_sent_once(refusal: httpx.Response, kind: type[Exception]) -> None:
    run = Run(refusal)

    with pytest.raises(kind):
        run.answer()

    assert len(run.requests) == 1


def test_an_equal_request_under_way_is_waited_for_and_another_is_not() -> None:
    under_way = problem(409, "idempotency_key_in_use", retry_after="1")

    assert Run(under_way, response(200, ANSWER)).answer().model == "sentiment"
    with pytest.raises(Exception, match="Why"):
        Run(problem(409, "conflict")).answer()


def test_an_attempt_before_is_waited_for_as_long_as_the_time_allows() -> None:
    under_way = problem(409, "idempotency_key_in_use", retry_after_ms="1000")
    run = Run(LOST, *[under_way] * 6, BUSY, BUSY, response(200, ANSWER))

    assert run.answer().model == "sentiment"
    with pytest.raises(Conflict):
        Run(*[under_way] * 40, timeout=10.0).answer()
    once = Run(under_way, retries=0)
    with pytest.raises(Conflict):
        once.answer()
    assert once.pauses == []


def test_a_pause_that_overshoots_the_time_ends_with_the_error_before_it() -> None:
    run = Run(problem(429, "rate_limited", retry_after="2"), timeout=2.02, oversleep=0.1)

    with pytest.raises(RateLimited):
        run.answer()

    assert len(run.requests) == 1


@pytest.mark.parametrize("name", ["Idempotency-Key", "idempotency-key"])
def test_a_key_of_the_caller_is_kept_and_alone(name: str) -> None:
    away = problem(503, "dependency_unavailable", retry_after_ms="10")
    run = Run(away, response(200, ANSWER), headers={name: "order-17"})

    run.answer()

    sent = [request.headers.get_list("idempotency-key") for request in run.requests]
    assert sent == [["order-17"]] * 2


def test_what_was_lost_without_its_key_is_not_sent_again() -> None:
    away = problem(503, "dependency_unavailable", retry_after_ms="10")
    run = Run(away, LOST)
    unsent = Run(away, httpx.ConnectError("refused"), response(200, ANSWER))

    with pytest.raises(NoAnswer):
        run.answer()
    assert unsent.answer().model == "sentiment"


def test_what_is_no_utf_8_is_an_error_of_the_client() -> None:
    url = "http://u:PASSWORD@g/v1/classify"
    for status, kind in ((200, NoAnswer), (503, Unavailable)):
        answered = httpx.Response(
            status, content=b'{"model":"\xff"}', request=httpx.Request("POST", url)
        )
        with pytest.raises(kind) as caught:
            Run(answered, retries=0).answer()
        assert "PASSWORD" not in str(caught.value)


def test_what_is_no_problem_document_is_still_an_error() -> None:
    page = httpx.Response(504, text="<html>", request=httpx.Request("POST", "http://balancer"))

    with pytest.raises(DeadlineExceeded, match="balancer"):
        Run(page, retries=0).answer()


def test_what_is_no_answer_of_a_gateway_is_an_error() -> None:
    with pytest.raises(NoAnswer, match="not from a gateway"):
        Run(response(200, {"something": "else"})).answer()


def test_readiness_is_an_answer_with_either_status() -> None:
    answered = httpx.Response(503, json={"ready": False, "missing": ["backends"]})

    readiness = Run(answered).answer(routes.is_ready())

    assert readiness.missing == ["backends"]


def test_a_body_has_only_what_is_not_left_to_the_gateway() -> None:
    plain = routes.embed("minilm", ["a"])
    full = routes.embed("minilm", "a", dimensions=3, truncate=False, on_error="continue")

    assert msgspec.json.decode(plain.body or b"") == {"model": "minilm", "input": ["a"]}
    assert msgspec.json.decode(full.body or b"") == {
        "model": "minilm",
        "input": "a",
        "dimensions": 3,
        "truncate": False,
        "on_error": "continue",
    }


def test_options_that_make_no_sense_are_refused() -> None:
    for wrong in ({"timeout": 0.0}, {"timeout": float("inf")}, {"retries": -1}):
        with pytest.raises(ValueError, match="must be"):
            Options(**wrong)


@pytest.mark.parametrize("texts", [b"a", [b"a"], [("a", b"b")], [{"prompt": bytearray(b"a")}]])
def test_bytes_are_no_text(texts: Any) -> None:
    """They would be sent in base64, and answered as if that were the text."""
    with pytest.raises(TypeError, match="decode bytes first"):
        routes.classify("m", texts)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_leads_to_another_route_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="`model` cannot be"):
        routes.get_model(name)
    with pytest.raises(ValueError, match="`model` cannot be"):
        routes.infer(name, [1])
    with pytest.raises(ValueError, match="`request_id` cannot be"):
        routes.get_request(name)


def test_one_group_needs_no_list() -> None:
    assert routes.get_usage(group_by="day").query == routes.get_usage(group_by=["day"]).query


def test_a_refusal_without_a_key_says_how_to_set_one() -> None:
    refused = problem(401, "authentication_failed")
    with_key = problem(401, "authentication_failed")
    with_key.request.headers["Authorization"] = "Bearer sk-wrong"

    plain, keyed = error_of(refused), error_of(with_key)

    assert str(plain).endswith("; set `SLUICEGATE_KEY` or pass `key`")
    assert plain.detail == keyed.detail == "Why."
    assert "SLUICEGATE_KEY" not in str(keyed)
