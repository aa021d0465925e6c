"""Parses bearer tokens in the header `Authorization`."""

from collections.abc import Iterable

_BEARER = b"bearer "


def bearer_token(value: bytes) -> bytes:
    """Return the bearer token in the value of an `Authorization` header, or "" if it has none."""
    return value[7:].strip() if value[:7].lower() == _BEARER else b""


def find_bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the bearer token in `headers`, whose names are in lower case.

    The result is empty if there is no `Authorization` header, or if there is more than one.
    """
    values = [value for name, value in headers if name == b"authorization"]
    return bearer_token(values[0]) if len(values) == 1 else b""
