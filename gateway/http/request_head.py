"""Validates the head of a request by RFC 9110 and RFC 9112."""

import re
from collections.abc import Sequence
from urllib.parse import unquote

import httptools

from gateway.errors import (
    HeaderFieldsTooLarge,
    InvalidRequest,
    TransferCodingNotSupported,
    VersionNotSupported,
)

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 100
# What RFC 3986 allows in a host and a port; a literal of IPv6 has brackets and colons.
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
_VERSIONS = frozenset({"1.0", "1.1"})
_REST = len(b"POST  HTTP/1.1\r\n\r\n")
_ENCODED_SLASH = re.compile("%2f", re.IGNORECASE)

# As clients write it, on a line of its own that is not folded.
_LENGTH_LINE = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([1-9][0-9]{0,8})(?=\r\n[^ \t])")
_LENGTH_MARK = b"ength: "
_BEFORE_MARK = len(b"\r\nContent-L")

Headers = Sequence[tuple[bytes, bytes]]


def header_fields_too_large() -> HeaderFieldsTooLarge:
    """Return the error for a head above the bounds."""
    return HeaderFieldsTooLarge(
        f"The head of a request may have {MAX_HEAD_BYTES} bytes and {MAX_FIELDS} header fields;"
        " send fewer, and the rest in the body."
    )


def split_length(head: bytes) -> tuple[int, bytes]:
    """Return the length of the body, and the head without the line that declares it.

    So heads are the same whose bodies differ in length only. 0, and the head as it is, where the
    first such line is of another form, or there is none: a parser then reads it.
    """
    start = head.find(_LENGTH_MARK) - _BEFORE_MARK
    # The first line is the request's.
    found = _LENGTH_LINE.match(head, start) if start > 0 else None
    if found is None:
        return 0, head
    return int(found[1]), head[:start] + head[found.end() :]


def has_valid_host(headers: Headers) -> bool:
    """Return whether there is exactly one `Host`, with characters that RFC 3986 allows.

    Names of `headers` are in lower case.
    """
    hosts = [value for name, value in headers if name == b"host"]
    return len(hosts) == 1 and _HOST.fullmatch(hosts[0]) is not None


def check_head(version: str, target: bytes, headers: Headers) -> None:
    """Validate version, host, framing and target; names of `headers` are in lower case.

    Raises:
        VersionNotSupported: the request is in another version of HTTP.
        TransferCodingNotSupported: its body is in a transfer coding other than `chunked`.
        InvalidRequest: host, framing or target are invalid.
    """
    if version not in _VERSIONS:
        raise VersionNotSupported("HTTP/1.1 and HTTP/1.0 are spoken here; use one of them.")
    if version == "1.1" and not has_valid_host(headers):
        raise InvalidRequest("Send exactly one `Host` header, with a host and a port, if any.")
    if codings := [value for name, value in headers if name == b"transfer-encoding"]:
        _check_codings(version, b",".join(codings).lower().split(b","))
    if not target.startswith(b"/") and not _has_path(target):
        raise InvalidRequest("The target of the request has no path.")


def check_size(target: bytes, headers: Headers) -> None:
    """Check a head against the bound on its size.

    Raises:
        HeaderFieldsTooLarge: it is larger.
    """
    fields = sum(len(name) + len(value) + 4 for name, value in headers)
    if fields + len(target) + _REST > MAX_HEAD_BYTES:
        raise header_fields_too_large()


def _check_codings(version: str, codings: list[bytes]) -> None:
    if version == "1.0":
        raise InvalidRequest("`Transfer-Encoding` is not of HTTP/1.0; use `Content-Length`.")
    if codings[-1].strip() != b"chunked":
        raise InvalidRequest("The last `Transfer-Encoding` must be `chunked`.")
    if len(codings) > 1:
        raise TransferCodingNotSupported("No `Transfer-Encoding` but `chunked` is understood.")


def decode_path(raw: str) -> str:
    """Return a path with its escapes decoded, except escaped slashes, which do not separate."""
    return "%2F".join([unquote(part) for part in _ENCODED_SLASH.split(raw)])


def _has_path(target: bytes) -> bool:
    try:
        return httptools.parse_url(target).path is not None
    except httptools.HttpParserInvalidURLError:
        return False


def split_fields(head: bytes) -> list[tuple[bytes, bytes]]:
    """Return names, in lower case, and values of the fields of a whole head that is well-formed."""
    fields = (line.partition(b":") for line in head.split(b"\r\n")[1:-2])
    return [(name.lower(), value.strip(b" \t")) for name, _, value in fields]
