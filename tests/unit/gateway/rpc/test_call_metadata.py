"""Metadata of a call become the headers of its request."""

import pytest

from sluicegate.gateway.rpc.call_metadata import request_headers


@pytest.mark.parametrize(
    ("asked", "remaining", "expected"),
    [("5", 1.0, b"1.000"), ("1", 5.0, b"1"), ("1", None, b"1"), ("soon", 5.0, b"soon")],
)
def test_the_shorter_of_two_deadlines_applies(
    asked: str, remaining: float | None, expected: bytes
) -> None:
    headers = request_headers([("x-request-timeout", asked)], remaining=remaining)

    assert headers == [(b"x-request-timeout", expected)]
