"""Parses the bearer token of `Authorization`, for every route of both listeners."""

from collections.abc import Iterable

_BEARER = b"bearer "


def bearer_token(value: bytes) -> bytes:
    """Return the token of the value of an `Authorization` header, empty if it has none."""
    return value[7:].strip() if value[:7].lower() == _BEARER else b""


def find_bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the token in `headers` (names in lower case), empty where there is none or several."""
    values = [value for name, value in headers if name == b"authorization"]
    return bearer_token(values[0]) if len(values) == 1 else b""
