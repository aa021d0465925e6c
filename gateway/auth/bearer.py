"""Parses the bearer token of `Authorization`, for every route."""

_BEARER = b"bearer "


def bearer_token(value: bytes) -> bytes:
    """Return the token of an `Authorization` header, empty if it has none."""
    return value[7:].strip() if value[:7].lower() == _BEARER else b""
