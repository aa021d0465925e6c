"""Validates the head of a request by RFC 9110 and RFC 9112."""

import re
from typing import Final
from urllib.parse import unquote

import httptools

from sluicegate.wire.http.messages import Headers
from sluicegate.wire.http.refusals import Refusal

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_FIELDS: Final = 100
TOO_LARGE: Final = (
    f"The head of a request may have {MAX_HEAD_BYTES} bytes and {MAX_FIELDS} header fields;"
    " send fewer, and the rest in the body."
)
# RFC 3986 allows these characters in a host and a port; a literal of IPv6 has brackets and colons.
_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_REST: Final = len(b"POST  HTTP/1.1\r\n\r\n")
_ENCODED_SLASH: Final = re.compile("%2f", re.IGNORECASE)


def head_too_large() -> Refusal:
    """Return the refusal of a head above the bounds."""
    return Refusal(431, TOO_LARGE)


def has_valid_host(headers: Headers) -> bool:
    """Return whether there is exactly one `Host`, with characters that RFC 3986 allows.

    Names of `headers` are in lower case.
    """
    hosts = [value for name, value in headers if name == b"host"]
    return len(hosts) == 1 and _HOST.fullmatch(hosts[0]) is not None


def check_head(version: str, target: bytes, headers: Headers) -> None:
    """Validate version, host, framing and target; names of `headers` are in lower case.

    Raises:
        Refusal: one of them is invalid, or not supported.
    """
    if version not in _VERSIONS:
        raise Refusal(505, "HTTP/1.1 and HTTP/1.0 are spoken here; use one of them.")
    if version == "1.1" and not has_valid_host(headers):
        raise Refusal(400, "Send exactly one `Host` header, with a host and a port, if any.")
    if codings := [value for name, value in headers if name == b"transfer-encoding"]:
        _check_codings(version, b",".join(codings).lower().split(b","))
    if not target.startswith(b"/") and not _has_path(target):
        raise Refusal(400, "The target of the request has no path.")


def check_size(target: bytes, headers: Headers) -> None:
    """Check a head against the bound on its size.

    Raises:
        Refusal: it is larger.
    """
    fields = sum(len(name) + len(value) + 4 for name, value in headers)
    if fields + len(target) + _REST > MAX_HEAD_BYTES:
        raise head_too_large()


def decode_path(raw: str) -> str:
    """Return a path with its escapes decoded, except escaped slashes, which do not separate."""
    return "%2F".join([unquote(part) for part in _ENCODED_SLASH.split(raw)])


def _check_codings(version: str, codings: list[bytes]) -> None:
    if version == "1.0":
        raise Refusal(400, "`Transfer-Encoding` is not of HTTP/1.0; use `Content-Length`.")
    if codings[-1].strip() != b"chunked":
        raise Refusal(400, "The last `Transfer-Encoding` must be `chunked`.")
    if len(codings) > 1:
        raise Refusal(501, "No `Transfer-Encoding` but `chunked` is understood.")


def _has_path(target: bytes) -> bool:
    try:
        return httptools.parse_url(target).path is not None
    except httptools.HttpParserInvalidURLError:
        return False
