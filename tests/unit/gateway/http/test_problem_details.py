"""What a caller is told of an error."""

import math

import msgspec
import pytest

from sluicegate.gateway.errors import (
    AuthenticationFailed,
    ConfigurationError,
    GatewayError,
    InvalidItem,
    ModelNotFound,
    Overloaded,
)
from sluicegate.gateway.http.problem_details import encode_problem, problem_headers


def told(error: GatewayError) -> dict[str, object]:
    found: dict[str, object] = msgspec.json.decode(encode_problem(error, "req_1"))
    return found


def test_a_problem_says_what_happened_and_no_more() -> None:
    assert told(ModelNotFound("No model `x` is served.")) == {
        "type": "urn:sluicegate:error:model_not_found",
        "title": "Model not found",
        "status": 404,
        "code": "model_not_found",
        "detail": "No model `x` is served.",
        "request_id": "req_1",
    }


def test_the_problem_of_an_item_names_it_even_if_it_is_the_first() -> None:
    found = told(InvalidItem("Item 0: empty.", index=0, item_code="empty_input"))

    assert (found["index"], found["item_code"]) == (0, "empty_input")


def test_the_problem_of_a_document_says_where() -> None:
    found = told(ConfigurationError("Bad.", file="gateway.yaml", line=3, field="request"))

    assert (found["file"], found["line"], found["field"]) == ("gateway.yaml", 3, "request")


@pytest.mark.parametrize(
    ("after", "seconds", "milliseconds"),
    [
        (0.0, b"1", b"0"),
        (0.2, b"1", b"200"),
        (1.5, b"2", b"1500"),
        (-3.0, b"1", b"0"),
        (600.0, b"120", b"120000"),
        (math.inf, b"120", b"120000"),
    ],
)
def test_when_to_come_back_is_rounded_up_and_120_seconds_at_most(
    after: float, seconds: bytes, milliseconds: bytes
) -> None:
    headers = dict(problem_headers(Overloaded("Busy.", retry_after=after)))

    assert headers == {b"retry-after": seconds, b"retry-after-ms": milliseconds}


def test_who_is_unknown_is_told_how_to_authenticate() -> None:
    headers = dict(problem_headers(AuthenticationFailed("Who?")))

    assert headers[b"www-authenticate"].startswith(b"Bearer ")
