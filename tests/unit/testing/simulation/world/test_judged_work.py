"""Tests how runs judge work that is done twice, in vain, or for nobody."""

from collections.abc import Sequence

import msgspec
import pytest

from testing.simulation.world.callers import Attempt
from testing.simulation.world.invariants import (
    Disturbance,
    Row,
    billing,
    computed_again,
    late_refusals,
)
from testing.simulation.world.monitor import BillRules
from testing.simulation.world.scenario import Request

_USAGE = {"items": 1, "hit": 0, "collapsed": 0, "computed": 1, "failed": 0, "rows": 1, "tokens": 7}


def attempt(
    id_: str = "",
    *,
    worker: str = "eu-0",
    status: int = 200,
    sent: float = 10.0,
    took: float = 0.01,
    key: str = "",
    is_written: bool = True,
    **usage: int,
) -> Attempt:
    """Return an attempt to embed one text."""
    request = Request(
        at=0.0,
        tenant="acme",
        worker=worker,
        path="/v1/embed",
        body={"model": "tiny", "input": ["a text"]},
        items=1,
        timeout=2.0,
        idempotency_key=key,
    )
    return Attempt(
        request=request,
        worker=worker,
        secret="",
        sent=sent,
        connected=sent,
        is_written=is_written,
        came=sent + took,
        status=status,
        headers={"x-request-id": id_},
        body=msgspec.json.encode({"usage": _USAGE | usage}),
    )


def row(id_: str, **usage: int) -> Row:
    """Return a row of the ledger about one embedded text."""
    return Row(
        number=1,
        ids=(id_,),
        time=0.0,
        tenant="acme",
        model="tiny",
        task="embed",
        status=200,
        usage=_USAGE | usage,
    )


def wrong_bills(attempts: Sequence[Attempt], rows: Sequence[Row]) -> list[str]:
    """Return what is wrong with rows that come after the attempts have ended."""
    rules = BillRules()
    found = [finding for each in attempts for finding in rules.ended(each)]
    return found + [finding for each in rows for finding in rules.billed(each)]


def slow(machine: str) -> Disturbance:
    """Return a fault that makes models slow from 10 to 30 s."""
    return Disturbance(
        kind="model-slow", target=machine, machines=frozenset({machine}), begun=10.0, ended=30.0
    )


def test_two_workers_of_a_region_compute_an_item_once() -> None:
    once = [attempt("a"), attempt("b", worker="eu-1", computed=0, collapsed=1)]
    twice = [attempt("a"), attempt("b", worker="eu-1")]

    assert not list(computed_again(once))
    assert len(list(computed_again(twice))) == 1


def test_each_region_may_compute_an_item_and_a_replay_computes_nothing() -> None:
    attempts = [attempt("a", key="k"), attempt("a", key="k"), attempt("b", worker="us-0")]

    assert not list(computed_again(attempts))


@pytest.mark.parametrize(("took", "findings"), [(0.01, 0), (2.0, 1)])
def test_refusals_come_at_once_while_all_backends_are_slow(took: float, findings: int) -> None:
    attempts = [attempt(status=503, sent=16.0 + n, took=took) for n in range(4)]
    everywhere = [slow("eu-backend"), slow("us-backend")]

    assert len(list(late_refusals(attempts, everywhere))) == findings
    assert not list(late_refusals(attempts, everywhere[:1]))


@pytest.mark.parametrize(
    ("attempts", "findings"),
    [
        ([attempt(status=0)], 0),
        ([attempt(status=0, is_written=False)], 1),
        ([attempt(status=0, key="k"), attempt("b", key="k")], 1),
    ],
)
def test_only_a_request_that_was_sent_may_be_billed_without_an_answer(
    attempts: Sequence[Attempt], findings: int
) -> None:
    rows = [row("a"), *(row(each.id) for each in attempts if each.id)]

    assert len(list(billing(attempts, rows, ()))) == findings


def test_what_is_computed_again_for_a_key_may_have_other_numbers() -> None:
    rows, answer = [row("a")], attempt("a", key="k", rows=0, tokens=0)
    lost = attempt(status=0, key="k")

    assert not wrong_bills([lost, answer], rows)
    assert len(wrong_bills([answer], rows)) == 1
