"""Takes the API key out of `Authorization`, alike on every route."""

_BEARER = b"bearer "


def bearer_token(value: bytes) -> bytes:
    """Return the key of an `Authorization` header, empty when it holds none."""
    return value[7:].strip() if value[:7].lower() == _BEARER else b""
