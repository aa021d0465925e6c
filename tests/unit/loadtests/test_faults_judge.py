"""The judge finds defects that are put in on purpose, and nothing where all is right."""

from typing import Any  # values of fields

import msgspec
import pytest

from loadtests.faults.judge import (
    LIMITED,
    NEVER,
    LedgerRow,
    Sent,
    Window,
    billing,
    errors_outside,
    recovery,
    wrong_answers,
)
from loadtests.faults.load import owner_of
from loadtests.faults.topology import Question, ledger_rows


def sent(id_: str, **changes: Any) -> Sent:
    usual = Sent(due=0.0, latency=0.1, status=200, tenant="north", path="/", is_right=True, id=id_)
    return msgspec.structs.replace(usual, **changes)


def row(id_: str, **changes: Any) -> LedgerRow:
    return msgspec.structs.replace(
        LedgerRow(id=id_, status=200, tenant="north", items=1), **changes
    )


class Echo:
    """Knows that the right answer to a question is its body."""

    def is_right(self, question: Question, body: bytes) -> bool:
        if body == b"no JSON":
            raise msgspec.DecodeError
        return question.body == body

    def questions(self, seed: int) -> list[Question]:
        raise NotImplementedError


def test_a_bill_that_is_counted_twice_is_found() -> None:
    answers = [sent("a"), sent("b")]

    assert [*billing(answers, [row("a"), row("b")])] == []
    assert "1 requests are in the ledger twice" in billing(answers, [row("a"), row("a"), row("b")])


@pytest.mark.parametrize(
    ("answer", "rows"),
    [
        (sent("a"), []),
        (sent("a"), [row("a", status=503)]),
        (sent("a"), [row("a", tenant="south")]),
        (sent("a", items=2), [row("a", items=1)]),
        (sent("a"), [row("a"), row("b")]),
        (sent("a", status=503), [row("a")]),
        (sent("a", status=429), []),
    ],
    ids=[
        "missing",
        "missing with its status",
        "another tenant's",
        "another number of items",
        "of nobody",
        "refused",
        "a refusal is missing",
    ],
)
def test_a_bill_that_is_wrong_is_found(answer: Sent, rows: list[LedgerRow]) -> None:
    assert [*billing([answer], rows)]


def test_two_answers_with_one_id_are_found() -> None:
    assert [*billing([sent("a"), sent("a")], [row("a")])]


def test_a_request_without_an_answer_may_be_billed() -> None:
    assert not [*billing([sent("", status=0)], [row("a")])]


def test_an_answer_with_an_allowed_error_must_be_in_the_ledger() -> None:
    def answer(status: int) -> Sent:
        return sent("a", status=status, allowed=frozenset({status}))

    assert [*billing([answer(400)], [])] == ["1 answers are not in the ledger"]
    assert not [*billing([answer(400)], [row("a", status=400)])]
    assert not [*billing([answer(401)], [])]


def test_an_answer_of_another_tenant_is_found() -> None:
    mine, theirs = (Question(path="/", body=body) for body in (b"mine", b"theirs"))
    asked = [("north", mine), ("south", theirs)]

    owner = owner_of(b"theirs", "north", asked, Echo())  # type: ignore[arg-type]
    found = [*wrong_answers([sent("a", is_right=False, answer_of=owner)])]

    assert found == ["1 wrong answers", "1 answers belong to another tenant"]
    for other in (b"nobody's", b"no JSON"):
        assert owner_of(other, "north", asked, Echo()) == ""  # type: ignore[arg-type]
    assert not [*wrong_answers([sent("a")])]


def test_a_worker_that_never_comes_back_is_found() -> None:
    assert [*recovery(["gateway 1"], waited=10.0)] == [
        "not well 10 s after the fault's end: gateway 1"
    ]
    assert not [*recovery([], waited=10.0)]


@pytest.mark.parametrize(
    ("window", "due", "is_found"),
    [
        (NEVER, 12.0, True),
        (Window(after_begin=3.0), 12.0, False),
        (Window(after_begin=3.0), 13.1, True),
        (Window(is_open=True, after_end=1.0), 20.9, False),
        (Window(is_open=True, after_end=1.0), 21.1, True),
        (Window(is_open=True, after_end=1.0), 9.0, True),
        (Window(is_open=True, path="/broken"), 15.0, True),
        (Window(is_open=True, path="/"), 15.0, False),
    ],
)
def test_an_error_outside_the_window_is_found(
    window: Window, due: float, *, is_found: bool
) -> None:
    answers = [sent("a", due=due, status=503)]

    assert bool([*errors_outside(answers, window, begun=10.0, ended=20.0)]) == is_found


def test_a_request_that_was_in_flight_when_the_fault_began_is_in_its_window() -> None:
    answers = [sent("a", due=8.0, latency=5.0, status=0)]

    assert not [*errors_outside(answers, Window(after_begin=1.0), begun=10.0, ended=20.0)]


@pytest.mark.parametrize(
    ("changes", "has_failed"),
    [
        ({"status": 429}, True),
        ({"status": 429, "tenant": f"{LIMITED}0"}, False),
        ({"status": 504}, True),
        ({"status": 504, "is_hasty": True}, False),
        ({"status": 500, "is_hasty": True}, True),
        ({"status": 400, "allowed": frozenset({400})}, False),
        ({"status": 200, "allowed": frozenset({400})}, True),
        ({"status": 0, "has_left": True}, False),
    ],
)
def test_only_what_the_load_provokes_is_no_error(
    changes: dict[str, Any], *, has_failed: bool
) -> None:
    assert sent("a", **changes).has_failed == has_failed


def test_each_request_of_a_run_is_a_row() -> None:
    found = ledger_rows([(f"req_{10:032x}", 3, 200, "north", 6, 0)])

    assert len({each.id for each in found}) == 3
    assert {each.items for each in found} == {2}


def test_the_items_of_a_run_are_compared_by_their_sum() -> None:
    rows = ledger_rows([(f"req_{10:032x}", 2, 200, "north", 13, 0)])
    one, many = rows[0].id, rows[1].id

    assert not [*billing([sent(one), sent(many, items=12)], rows)]
    assert [*billing([sent(one), sent(many, items=11)], rows)]
