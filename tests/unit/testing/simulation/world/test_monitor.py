"""Tests what is judged while a simulated world runs."""

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from testing.simulation.world.callers import Attempt
from testing.simulation.world.invariants import STOP, USAGE, Disturbance, Row
from testing.simulation.world.model import (
    ENCODERS,
    GUARD_PATH,
    LABELS,
    SHARED,
    Oracle,
    _verdict,
    write_models,
)
from testing.simulation.world.monitor import SLACK, BillRules, LimitRule, TextRules, lateness
from testing.simulation.world.scenario import CAPACITY, LIMITED, Request


def attempt(
    *,
    answer: Any = None,
    status: int = 200,
    sent: float = 1.0,
    came: float = 1.1,
    id_: str = "req_1",
    model: str = "tiny",
    **changes: Any,
) -> Attempt:
    """Return an attempt of `acme` that was answered, unless something else is said."""
    fields: dict[str, Any] = {
        "tenant": "acme",
        "path": "/v1/embed",
        "timeout": 0.5,
        "worker": "eu-0",
    } | changes
    return Attempt(
        request=Request(at=0.0, body={"model": model, "input": ["good film"]}, items=1, **fields),
        worker=fields["worker"],
        secret="",
        sent=sent,
        connected=sent,
        came=came,
        status=status,
        headers={"x-request-id": id_},
        body=msgspec.json.encode(answer or {}),
    )


def usage(**counts: int) -> dict[str, int]:
    """Return the usage of an answer or a row."""
    return dict.fromkeys(USAGE, 0) | counts


def row(*ids: str, tenant: str = "acme", **counts: int) -> Row:
    """Return a row of the ledger."""
    return Row(
        number=1,
        ids=ids,
        time=0.0,
        tenant=tenant,
        model="tiny",
        task="embed",
        status=200,
        usage=usage(**counts),
    )


def fault(kind: str, *machines: str, begun: float = 0.0, ended: float = inf) -> Disturbance:
    """Return a fault."""
    where = frozenset(machines)
    return Disturbance(kind=kind, target=machines[0], machines=where, begun=begun, ended=ended)


def test_an_answer_after_its_deadline_is_late() -> None:
    took = 0.5 + SLACK + 0.01

    found = list(lateness(attempt(sent=1.0, came=1.0 + took), []))

    assert found == ["eu-0 answered after 0.57 s, not within 0.5 s, at 1.00"]
    assert not list(lateness(attempt(sent=1.0, came=1.0 + took - 0.02), []))


def test_a_missing_answer_is_late() -> None:
    assert list(lateness(attempt(status=0, came=4.5), []))


def test_a_fault_before_a_worker_excuses_lateness() -> None:
    late = attempt(came=3.0)

    assert not list(lateness(late, [fault("cut", "callers", "eu-gateway")]))
    assert list(lateness(late, [fault("cut", "us-gateway", "us-redis")]))
    assert list(lateness(late, [fault(STOP, "eu-gateway")]))


def test_an_id_is_billed_once() -> None:
    bill = BillRules()

    assert not list(bill.billed(row("req_1")))
    assert list(bill.billed(row("req_1"))) == ["req_1 is in the ledger twice"]


@pytest.mark.parametrize("is_billed_first", [True, False])
def test_a_refused_request_is_not_billed(*, is_billed_first: bool) -> None:
    bill, refused = BillRules(), attempt(status=503)

    steps: list[Iterator[str]] = [bill.billed(row("req_1")), bill.ended(refused)]
    if not is_billed_first:
        steps.reverse()

    assert [found for step in steps for found in step] == ["req_1 is billed, but was refused"]


@pytest.mark.parametrize("is_billed_first", [True, False])
def test_a_row_says_what_its_answers_said(*, is_billed_first: bool) -> None:
    bill = BillRules()
    answers = [attempt(id_=id_, answer={"usage": usage(hit=1)}) for id_ in ("req_1", "req_2")]

    steps = [bill.billed(row("req_1", "req_2", hit=3)), *map(bill.ended, answers)]
    if not is_billed_first:
        steps.reverse()

    (found,) = [found for step in steps for found in step]
    assert found.startswith("req_1 is billed as")


def test_two_requests_have_two_ids() -> None:
    bill = BillRules()
    answer = {"usage": usage()}

    assert not list(bill.ended(attempt(answer=answer)))
    assert list(bill.ended(attempt(answer=answer))) == ["req_1 is the id of two answers"]


def test_a_limit_is_exceeded_by_the_request_that_exceeds_it() -> None:
    rule = LimitRule([], lambda _: CAPACITY)

    found = [
        list(rule.ended(attempt(tenant=LIMITED, sent=1.0, came=1.0))) for _ in range(CAPACITY + 3)
    ]

    exceeded = [number for number, each in enumerate(found, 1) if each]
    assert exceeded == [CAPACITY + 2]


def test_a_limit_refills_and_grows_by_faults() -> None:
    requests = [
        attempt(tenant=LIMITED, sent=each / 4, came=each / 4) for each in range(CAPACITY + 10)
    ]
    alone, with_fault = (
        LimitRule([], lambda _: 10),
        LimitRule([fault("empty", "eu-redis")], lambda _: 10),
    )

    assert [found for each in requests for found in alone.ended(each)]
    assert not [found for each in requests for found in with_fault.ended(each)]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Oracle, str]:
    """Return what knows the right answers, and the revision of the guard's model."""
    root: Path = tmp_path_factory.mktemp("models")
    write_models(root)
    made = Oracle()
    made.learn(root)
    return made, next(iter(made._guards))


def _hit(oracle: Oracle, model: str) -> Attempt:
    """Return a hit of `acme`, whose answer is right."""
    revision = next(revision for name, revision in oracle._known if name == model)
    vector = oracle.embedding(model, revision, "good film").tolist()
    told = {"model": model, "revision": revision, "results": [{"embedding": vector}]}
    return attempt(answer=told | {"usage": usage(hit=1)}, model=model)


@pytest.mark.parametrize("model", ENCODERS)
def test_a_hit_is_on_a_text_that_was_sent_before(oracle: tuple[Oracle, str], model: str) -> None:
    rules, hit = TextRules(oracle[0]), _hit(oracle[0], model)

    rules.sent(hit)
    first = list(rules.ended(hit))
    rules.sent(hit)

    assert first == ["req_1: acme got a hit on texts that were never sent"]
    assert not list(rules.ended(hit))


def test_only_results_of_a_shared_model_are_hit_by_other_tenants(
    oracle: tuple[Oracle, str],
) -> None:
    found = {}
    for model in ENCODERS:
        rules, hit = TextRules(oracle[0]), _hit(oracle[0], model)
        rules.sent(attempt(tenant="beta", model=model))
        rules.sent(hit)
        found[model] = len(list(rules.ended(hit)))

    assert found == {"tiny": 1, SHARED: 0}


def _guarded(oracle: tuple[Oracle, str], text: str, result: dict[str, Any]) -> str:
    made, revision = oracle
    answer = {"model": "detectors", "revision": revision, "results": [result]}
    return made.problem(GUARD_PATH, {"input": [text]}, msgspec.json.encode(answer))


def test_a_text_is_allowed_only_by_the_oracle(oracle: tuple[Oracle, str]) -> None:
    made, revision = oracle
    allowed = {"verdict": "allow", "findings": []}
    texts = [f"good {first} {other}" for first in LABELS for other in ("card", "paris", "text")]
    texts += ["about the money"]

    for text in texts:
        scores = made._scores(made._guards[revision], text, "softmax")
        is_fine = bool(np.max(scores) < 0.8) and "money" not in text
        assert bool(_guarded(oracle, text, allowed)) != is_fine


def test_a_text_that_was_not_read_is_blocked(oracle: tuple[Oracle, str]) -> None:
    error = {"findings": [], "error": {"code": "unavailable", "detail": ""}}

    assert not _guarded(oracle, "the text", error | {"verdict": "block"})
    assert _guarded(oracle, "the text", error | {"verdict": "allow"})


def test_the_strongest_action_is_the_verdict() -> None:
    found = [_verdict(names) for names in ((), ("joy",), ("joy", "topic"), ("anger", "topic"))]

    assert found == ["allow", "flag", "redact", "block"]
