"""Errors of Litestar routes are problem documents, alike on both listeners."""

import logging

import msgspec
import pytest
from litestar.exceptions import (
    ClientException,
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from litestar.status_codes import HTTP_413_REQUEST_ENTITY_TOO_LARGE

from sluicegate.gateway.api.error_handling import gateway_error, problem_response
from sluicegate.gateway.errors import (
    GatewayError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    RateLimited,
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotFoundException(), NotFound),
        (MethodNotAllowedException(), MethodNotAllowed),
        (HTTPException(status_code=HTTP_413_REQUEST_ENTITY_TOO_LARGE), PayloadTooLarge),
        (ClientException("odd"), InvalidRequest),
        (HTTPException(), InternalError),
        (ValueError(), InternalError),
    ],
)
def test_errors_of_the_framework_are_errors_of_the_gateway(
    error: Exception, kind: type[GatewayError]
) -> None:
    assert type(gateway_error(error, "req_1")) is kind


def test_a_misfit_names_its_fields() -> None:
    extra = [{"key": "limit", "message": "too large"}, {"key": "data", "message": "no object"}]

    error = gateway_error(ValidationException(extra=extra), "req_1")

    assert error.detail.endswith(": `limit`: too large; the body: no object.")


def test_a_request_without_its_body_is_told_to_have_one() -> None:
    extra = [{"key": "data", "message": "'data'"}]

    error = gateway_error(ValidationException(extra=extra), "req_1")

    assert error.detail.endswith(": the body is empty; send JSON.")


def test_an_unexpected_error_is_in_the_log_and_not_in_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        error = gateway_error(ValueError("secret"), "req_1")

    assert "secret" not in error.detail
    assert caplog.messages == ["unexpected failure"]


def test_a_response_has_its_own_headers_and_those_of_the_error() -> None:
    error = RateLimited("Wait.", retry_after=2.0)

    response = problem_response(error, "req_1", {"x-request-id": "req_1"})

    assert (response.status_code, response.headers["x-request-id"]) == (429, "req_1")
    assert response.headers["retry-after"] == "2"
    assert msgspec.json.decode(response.content)["code"] == "rate_limited"
