"""Tests the arena's judging: windows of errors, ledger beside answers, stored results."""

from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from loadtests.arena import topology
from loadtests.arena.cases import cases
from loadtests.arena.judging import (
    CaseObservations,
    LedgerComparison,
    LedgerEntry,
    Verdict,
    Window,
    compare,
    findings,
    judge,
    wait_for_ledger,
)
from loadtests.arena.load import RequestOutcome
from loadtests.arena.memory import BOUNDS, kind_of
from loadtests.arena.questions import ExpectedAnswers, Question
from loadtests.arena.record import Result, ResultFile, table

BEGUN, ENDED = 10.0, 40.0
SEEN = dict.fromkeys(BOUNDS, 100.0)
"""Memory of every kind of process, within its bound."""


def sent(due: float, status: int = 200, *, id_: str = "", latency: float = 0.01) -> RequestOutcome:
    return RequestOutcome(
        due=due,
        latency=latency,
        status=status,
        is_right=status == 200,
        items=2,
        id=id_ or f"r{due:g}",
    )


def verdict(*requests: RequestOutcome, window: Window = Window()) -> Verdict:  # noqa: B008 - frozen
    return judge(requests, window, begun=BEGUN, ended=ENDED)


def around(**changes: object) -> CaseObservations:
    made = CaseObservations(unhealthy=[], memory=SEEN, bounds=BOUNDS)
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    ("due", "window", "is_held"),
    [
        (9.5, Window(after_begin=2), True),  # under way when it began
        (8.5, Window(after_begin=2), False),
        (11.9, Window(after_begin=2), True),
        (12.1, Window(after_begin=2), False),
        (25.0, Window(after_begin=2, after_end=2), False),
        (41.9, Window(after_begin=2, after_end=2), True),
        (25.0, Window(is_open=True), True),
        (40.1, Window(is_open=True), False),
        (42.9, Window(is_open=True, after_end=3), True),
        (10.0, Window(), False),
    ],
)
def test_a_window_holds_what_was_due_in_it(*, due: float, window: Window, is_held: bool) -> None:
    assert window.holds(sent(due, 502, latency=1.0), begun=BEGUN, ended=ENDED) is is_held


def test_a_window_says_what_it_allows() -> None:
    assert str(Window()) == "never"
    assert str(Window(after_begin=2)) == "2 s of its beginning"
    assert str(Window(is_open=True, after_end=3)) == "the fault and 3 s"


def test_errors_are_counted_by_when_they_were_due() -> None:
    found = verdict(
        sent(5, latency=0.1),
        sent(11, 502),
        sent(30, 0),
        sent(60, latency=0.2),
        window=Window(after_begin=2),
    )

    assert (found.requests, found.errors, found.outside, found.wrong) == (4, 2, 1, 0)
    assert (found.errors_from, found.errors_to) == (1.0, 20.0)
    assert found.codes == {"502": 1, "0": 1}
    assert (found.p99_before, found.p99_after) == (0.1, 0.2)


def test_an_answer_that_is_not_the_expected_one_is_wrong() -> None:
    found = verdict(msgspec.structs.replace(sent(5), is_right=False))

    assert found.wrong == 1


def test_the_ledger_is_compared_request_by_request() -> None:
    answers = [sent(1, id_="a"), sent(2, id_="b"), sent(3, 503, id_="c"), sent(4, 0)]
    ledger = {
        "a": LedgerEntry(times=2, status=200),
        "c": LedgerEntry(times=1, status=200),
        "x": LedgerEntry(times=1, status=200),
        "y": LedgerEntry(times=1, status=503),
    }

    books = compare(answers, ledger, items_billed=5)

    assert (books.answered, books.billed) == (2, 3)
    assert (books.missing, books.twice, books.refused_and_billed, books.unanswered) == (1, 1, 1, 1)
    assert (books.items_answered, books.items_billed) == (4, 5)


def test_what_is_billed_twice_a_little_later_is_seen() -> None:
    answers = [sent(1, id_="a")]
    once = compare(answers, {"a": LedgerEntry(times=1, status=200)}, items_billed=2)
    twice = compare(answers, {"a": LedgerEntry(times=2, status=200)}, items_billed=4)
    looks = iter([compare(answers, {}, items_billed=0), once, twice])
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    books, waited = wait_for_ledger(
        lambda: next(looks), within=60.0, clock=lambda: now[0], pause=pause
    )

    assert (books.twice, waited) == (1, 1.0)


def test_what_is_never_billed_is_waited_for_as_long_as_stated() -> None:
    missing = compare([sent(1, id_="a")], {}, items_billed=0)
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    books, waited = wait_for_ledger(lambda: missing, within=60.0, clock=lambda: now[0], pause=pause)

    assert (books.missing, waited) == (1, 60.0)


def test_what_is_as_it_must_be_is_no_finding() -> None:
    answers = [sent(number) for number in range(1, 60)]
    ledger = {each.id: LedgerEntry(times=1, status=200) for each in answers}
    books = compare(answers, ledger, items_billed=2 * len(answers))

    found = list(findings(verdict(*answers), books, around()))

    assert found == []


def test_who_got_no_answer_may_be_billed_and_nobody_else() -> None:
    answers = [sent(1, id_="a"), msgspec.structs.replace(sent(12, 0), id="")]
    ledger = {one: LedgerEntry(times=1, status=200) for one in ("a", "b")}
    found = verdict(*answers, window=Window(after_begin=5))

    one = findings(found, compare(answers, ledger, items_billed=4), around())
    two = findings(
        found,
        compare(answers, {**ledger, "c": LedgerEntry(times=1, status=200)}, items_billed=6),
        around(),
    )

    assert list(one) == []
    assert list(two) == ["1 billed, of which nobody asked"]


def test_everything_that_is_not_as_it_must_be_is_named() -> None:
    books = LedgerComparison(
        answered=1,
        billed=2,
        missing=1,
        twice=1,
        refused_and_billed=1,
        unanswered=0,
        items_answered=1,
        items_billed=2,
    )

    found = list(
        findings(
            verdict(sent(30, 500)),
            books,
            around(unhealthy=["billing"], memory=SEEN | {"billing": BOUNDS["billing"] + 1}),
        )
    )

    assert [each.split(" ", 1)[0] for each in found] == ["1", "1", "1", "1", "not", "a"]


def test_a_process_that_nobody_looked_at_is_no_proof() -> None:
    answers = [sent(1, id_="a")]
    books = compare(answers, {"a": LedgerEntry(times=1, status=200)}, items_billed=2)
    seen = {kind: mebibytes for kind, mebibytes in SEEN.items() if kind != "billing"}

    found = findings(verdict(*answers), books, around(memory=seen))

    assert list(found) == ["the memory of billing was not seen"]


def test_items_are_compared_where_every_request_was_answered() -> None:
    answers = [sent(1, id_="a")]
    ledger = {"a": LedgerEntry(times=1, status=200)}

    found = findings(verdict(*answers), compare(answers, ledger, items_billed=3), around())

    assert list(found) == ["3 items billed, 2 answered"]


def test_every_container_that_goes_on_meets_every_fault_that_it_can() -> None:
    services = {
        name: each for name, each in topology.services(defaultdict(str)).items() if not each.ends
    }

    chosen = list(cases(services))

    assert len({case.name for case in chosen}) == len(chosen)
    assert {case.service for case in chosen} == set(services)
    faults = {case.fault for case in chosen if case.service == "gateway-1"}
    assert {"kill", "stop", "freeze", "cut-in", "cut-out", "full", "address", "replace"} <= faults
    assert {case.service for case in chosen if case.fault == "full"} == {
        service.name for service in services.values() if service.volumes and service.disk
    }
    assert {kind_of(name) for name in services} == set(BOUNDS)


def test_a_result_is_kept_at_once_and_the_last_of_a_case_counts(tmp_path: Path) -> None:
    record = ResultFile(tmp_path / "folder" / "arena.jsonl")
    books = compare([sent(1, id_="a")], {"a": LedgerEntry(times=1, status=200)}, items_billed=2)
    for found in (["1 wrong answers"], []):
        record.add(
            Result(
                case="gateway-1:kill",
                commit="abc",
                time=0.0,
                rate=80.0,
                begun=BEGUN,
                ended=ENDED,
                window=str(Window(after_begin=3)),
                verdict=verdict(sent(1, id_="a")),
                books=books,
                ledger_settled=0.1,
                memory={"gateway": 90.0, "backend": 300.0},
                findings=found,
            )
        )

    results = ResultFile(tmp_path / "folder" / "arena.jsonl").results()

    assert list(results) == ["gateway-1:kill"]
    assert results["gateway-1:kill"].findings == []
    *_, line = table(results.values())
    assert "| gateway-1:kill | 1 | 0 | 0 | - | 3 s of its beginning |" in line
    assert "backend 300 MiB | as it must |" in line


def test_numbers_may_be_rounded_otherwise_and_labels_may_not_differ() -> None:
    expected = ExpectedAnswers({})
    good = {"labels": [{"label": "positive", "score": 0.75}]}
    body = {"model": "m", "results": [good], "usage": {"items": 1}}
    expected.add("/v1/classify", "m", ["text"], msgspec.json.encode(body))
    question = Question(path="/v1/classify", model="m", texts=("text",), is_cached=True)

    def is_right(label: str, score: float, items: int = 1) -> bool:
        result = {"labels": [{"label": label, "score": score}]}
        answer = {"model": "m", "results": [result], "usage": {"items": items}}
        return expected.is_right(question, msgspec.json.encode(answer))

    assert is_right("positive", 0.75001)
    assert not is_right("positive", 0.76)
    assert not is_right("negative", 0.75)
    assert not is_right("positive", 0.75, items=2)
    assert not expected.is_right(question, b"<html>")


def test_answers_that_differ_before_any_fault_are_no_measure() -> None:
    expected = ExpectedAnswers({})
    expected.add("/v1/embed", "m", ["text"], b'{"results": [{"embedding": [0.5]}]}')

    with pytest.raises(ValueError, match="differ before any fault"):
        expected.add("/v1/embed", "m", ["text"], b'{"results": [{"embedding": [0.6]}]}')


def test_answers_that_share_an_id_and_items_that_are_not_billed_are_found() -> None:
    answers = [sent(number, id_="a") for number in range(1, 5)]
    ledger = {one: LedgerEntry(times=1, status=200) for one in ("a", "b")}

    found = list(compare(answers, ledger, items_billed=3).findings())

    assert found == [
        "3 answers have the id of another",
        "1 billed, of which nobody asked",
        "3 items billed, 8 answered",
    ]
