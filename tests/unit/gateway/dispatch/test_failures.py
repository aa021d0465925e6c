"""What a caller is told of each kind of trouble."""

import pytest

from sluicegate.gateway.dispatch.failures import explained, of_call, of_item
from sluicegate.gateway.dispatch.statistics import DispatchStatistics
from sluicegate.gateway.types import ItemFailure, ItemOutcome, Source
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.wire.protocol import Failed


@pytest.mark.parametrize("cause", [Cause.UNREACHABLE, Cause.CUT, Cause.TIMED_OUT])
def test_backends_that_do_not_answer_are_unavailable(cause: Cause) -> None:
    failure = of_call(CallFailed(cause, "connection to 10.0.0.7 refused"))

    assert (failure.status, failure.code) == (503, "upstream_unavailable")
    assert failure.retryable
    assert failure.retry_after is not None
    assert "10.0.0.7" not in failure.detail


@pytest.mark.parametrize(
    ("status", "code", "retryable", "expected"),
    [
        (503, "overloaded", True, (503, "overloaded")),
        (409, "revision_mismatch", True, (503, "upstream_unavailable")),
        (404, "model_not_found", False, (503, "upstream_unavailable")),
        (422, "invalid_parameters", False, (422, "invalid_parameters")),
        (401, "unauthorized", False, (502, "upstream_failed")),
        (500, "internal_error", False, (502, "upstream_failed")),
    ],
)
def test_refusals_are_told_apart(
    status: int, code: str, *, retryable: bool, expected: tuple[int, str]
) -> None:
    refusal = CallFailed(Cause.REFUSED, "no", status=status, code=code, retryable=retryable)

    failure = of_call(refusal)

    assert (failure.status, failure.code) == expected


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (422, "too_long", (422, "too_long")),
        (503, "overloaded", (503, "overloaded")),
        (504, "deadline_exceeded", (504, "deadline_exceeded")),
        (500, "run_failed", (502, "upstream_failed")),
        (500, "algorithm_failed", (500, "algorithm_failed")),
        (200, "too_long", (502, "upstream_failed")),
        (1000, "overloaded", (502, "upstream_failed")),
    ],
)
def test_failures_of_items_keep_their_meaning(
    status: int, code: str, expected: tuple[int, str]
) -> None:
    frame = Failed(index=0, status=status, code=code, detail="why", retryable=False)

    failure = of_item(frame)

    assert (failure.status, failure.code) == expected
    assert failure.detail == "why"


def test_a_backend_s_time_to_come_back_is_passed_on() -> None:
    late = Failed(
        index=0,
        status=504,
        code="deadline_exceeded",
        detail="late",
        retryable=False,
        retry_after=2.5,
    )

    assert of_item(late).retry_after == 2.5


def test_an_error_of_an_algorithm_fails_the_request_as_the_backend_s() -> None:
    frame = Failed(index=0, status=500, code="algorithm_failed", detail="why", retryable=False)

    error = of_item(frame).error(0)

    assert (error.status, error.code, error.detail) == (502, "upstream_failed", "why")


@pytest.mark.parametrize(
    ("queueing", "backlog", "is_overload"),
    [(0.3, None, True), (0.0, 0.5, True), (0.1, 0.2, False), (0.0, 0.1, False), (0.0, None, False)],
)
def test_who_is_late_is_refused_where_others_took_a_quarter_of_its_time(
    queueing: float, backlog: float | None, *, is_overload: bool
) -> None:
    late = ItemFailure(status=504, code="deadline_exceeded", detail="late", retry_after=backlog)
    outcome = ItemOutcome(source=Source.FAILED, failure=late)

    found = explained(outcome, queueing=queueing, given=1.0)

    assert found.failure is not None
    assert found.failure.is_overload == is_overload


def test_a_request_without_time_for_any_answer_is_late_whatever_waits() -> None:
    late = ItemFailure(status=504, code="deadline_exceeded", detail="late", retry_after=0.5)
    outcome = ItemOutcome(source=Source.FAILED, failure=late)

    assert explained(outcome, queueing=0.3, given=0.0001) is outcome


def test_other_outcomes_have_nothing_to_do_with_overload() -> None:
    done = ItemOutcome(source=Source.COMPUTED, result=b"{}")
    odd = ItemOutcome(
        source=Source.FAILED, failure=ItemFailure(status=502, code="upstream_failed", detail="no")
    )

    found = [explained(outcome, queueing=9.0, given=1.0) for outcome in (done, odd)]

    assert found == [done, odd]


def test_codes_that_backends_invent_are_bounded() -> None:
    counts = DispatchStatistics()

    for number in range(1000):
        counts.count_failure(f"code_{number}")

    assert counts.failed == sum(counts.failed_by_code.values()) == 1000
    assert len(counts.failed_by_code) == 101
