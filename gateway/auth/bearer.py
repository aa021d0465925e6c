"""Parses keys in the header `Authorization`."""

import base64
import binascii
from collections.abc import Iterable

_BEARER, _BASIC = b"bearer ", b"basic "


def bearer_token(value: bytes) -> bytes:
    """Return the bearer token in the value of an `Authorization` header, or "" if it has none."""
    return value[7:].strip() if value[:7].lower() == _BEARER else b""


def api_key(value: bytes) -> bytes:
    """Return the API key in the value of an `Authorization` header, or "" if it has none.

    The password of `Basic` (RFC 7617) is also a key, for clients that can authenticate only through
    their base URL, as in `https://user:KEY@host`. No answer asks for `Basic`, so browsers do not
    keep it.
    """
    if value[:6].lower() != _BASIC:
        return bearer_token(value)
    try:
        return base64.b64decode(value[6:], validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def find_bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the bearer token in `headers`, whose names are in lower case.

    The result is empty if there is no `Authorization` header, or if there is more than one.
    """
    values = [value for name, value in headers if name == b"authorization"]
    return bearer_token(values[0]) if len(values) == 1 else b""
