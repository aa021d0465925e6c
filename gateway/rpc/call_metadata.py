"""Turns metadata of gRPC calls into headers of requests, and headers of answers into metadata."""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from sluicegate.gateway.api.http import Headers, header_fields
from sluicegate.gateway.auth.bearer import api_key

_API_KEY = b"x-api-key"
_AUTHORIZATION = b"authorization"
_TIMEOUT = b"x-request-timeout"
# What says how a message travels, or that the application may encode its answer.
_OF_TRANSPORT = frozenset(
    {
        *(b"accept-encoding", b"connection", b"expect", b"host", b"te", b"transfer-encoding"),
        *(b"user-agent", b"inference-header-content-length"),
    }
)
_PREFIXES = (b":", b"grpc-", b"content-")
_NOT_RETURNED = frozenset({b"vary", b"allow", b"cache-control", b"www-authenticate"})
_SHORTEST = 0.001


def request_headers(
    metadata: Iterable[tuple[str, str | bytes]], *, remaining: float | None
) -> Headers:
    """Return the headers of a request; `remaining` are the seconds until the call's deadline.

    A key may come as `x-api-key`, as some clients send it.
    """
    headers: Headers = []
    for name, value in metadata:
        key = name.encode("latin-1")
        if isinstance(value, str) and not key.startswith(_PREFIXES) and key not in _OF_TRANSPORT:
            headers.append((key, value.encode("latin-1", "replace")))
    names = dict(headers)
    if _AUTHORIZATION not in names and _API_KEY in names:
        headers.append((_AUTHORIZATION, b"Bearer " + names[_API_KEY]))
    if remaining is not None:
        headers = _with_deadline(headers, names.get(_TIMEOUT), remaining)
    return headers


def key_headers(metadata: Sequence[tuple[str, str | bytes]]) -> Headers:
    """Return the header with the call's key, if the call has exactly one."""
    own = [value for name, value in metadata if name == "authorization"]
    # With several keys it is unclear which one was meant.
    headers = [(_AUTHORIZATION, _encoded(value)) for value in own]
    if not own:
        others = [value for name, value in metadata if name == "x-api-key"]
        headers = [(_AUTHORIZATION, b"Bearer " + _encoded(value)) for value in others[-1:]]
    return headers


def key_in(metadata: Sequence[tuple[str, str | bytes]]) -> bytes:
    """Return the key that a call came with, empty if there is none."""
    headers = key_headers(metadata)
    return api_key(headers[0][1]) if len(headers) == 1 else b""


def trailing_metadata(lines: bytes) -> tuple[tuple[str, str], ...]:
    """Return what of an answer's header lines a caller is told: its id, limits, cache."""
    return tuple(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in header_fields(lines)
        if not (name.startswith(_PREFIXES) or name in _OF_TRANSPORT or name in _NOT_RETURNED)
    )


def _with_deadline(headers: Headers, asked: bytes | None, remaining: float) -> Headers:
    """Return headers with the shorter time; one that is no number is for the application."""
    with suppress(ValueError):
        if asked is None or float(asked) > remaining:
            kept = [header for header in headers if header[0] != _TIMEOUT]
            return [*kept, (_TIMEOUT, b"%.3f" % max(remaining, _SHORTEST))]
    return headers


def _encoded(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")
