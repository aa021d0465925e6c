"""Bearer tokens: one header, in any case of its scheme."""

import pytest

from sluicegate.gateway.auth.bearer import api_key, bearer_token, find_bearer_token


@pytest.mark.parametrize("value", [b"Bearer sk-1", b"bearer sk-1", b"BEARER   sk-1 "])
def test_the_scheme_is_read_in_any_case(value: bytes) -> None:
    assert bearer_token(value) == b"sk-1"


@pytest.mark.parametrize("value", [b"", b"sk-1", b"Basic sk-1", b"Bearersk-1", b"Bearer"])
def test_other_values_hold_no_token(value: bytes) -> None:
    assert bearer_token(value) == b""


def test_several_headers_hold_no_token() -> None:
    header = (b"authorization", b"Bearer sk-1")

    assert find_bearer_token([(b"host", b"w"), header]) == b"sk-1"
    assert find_bearer_token([header, (b"authorization", b"Bearer sk-2")]) == b""
    assert find_bearer_token([(b"host", b"w")]) == b""


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"Bearer sk-1", b"sk-1"),
        (b"Basic dXNlcjpzay0x", b"sk-1"),
        (b"basic OnNrLTE=", b"sk-1"),
        (b"Basic dXNlcjo=", b""),
        (b"Basic c2stMQ==", b""),
        (b"Basic sk-1", b""),
    ],
)
def test_the_password_of_a_base_url_is_a_key(value: bytes, key: bytes) -> None:
    assert api_key(value) == key
