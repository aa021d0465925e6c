"""Failures of items become errors of requests, and errors become failures of items."""

import pytest

from sluicegate.gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InternalError,
    InvalidItem,
    ModelNotFound,
    Overloaded,
    RateLimited,
    UpstreamFailed,
    UpstreamUnavailable,
)
from sluicegate.gateway.types import ItemFailure


@pytest.mark.parametrize(
    "kind",
    [
        DeadlineExceeded,
        InternalError,
        ModelNotFound,
        Overloaded,
        RateLimited,
        UpstreamFailed,
        UpstreamUnavailable,
    ],
)
def test_an_error_is_the_same_after_it_was_the_failure_of_an_item(
    kind: type[GatewayError],
) -> None:
    error = ItemFailure.of(kind("Detail.", retry_after=2.0)).error(0)

    assert type(error) is kind
    assert (error.detail, error.retry_after) == ("Detail.", 2.0)


def test_a_failure_of_the_item_itself_names_the_item() -> None:
    error = ItemFailure(status=422, code="empty_input", detail="it is empty").error(3)

    assert isinstance(error, InvalidItem)
    assert (error.index, error.item_code, error.detail) == (3, "empty_input", "Item 3: it is empty")


def test_a_retryable_error_says_when_to_come_back() -> None:
    failure = ItemFailure(status=503, code="cancelled", detail="it was cancelled")

    assert failure.error(0).retry_after == 1.0


def test_a_passed_deadline_names_the_phase() -> None:
    failure = ItemFailure.of(DeadlineExceeded.during("the computation"))

    assert (failure.status, failure.code) == (504, "deadline_exceeded")
    assert "during the computation;" in failure.detail


def test_an_item_that_overload_made_late_refuses_its_request_and_says_when_to_return() -> None:
    late = ItemFailure(
        status=504, code="deadline_exceeded", detail="busy", retry_after=0.7, is_overload=True
    )

    error = late.error(0)

    assert isinstance(error, Overloaded)
    assert (error.status, error.retry_after) == (503, 0.7)
