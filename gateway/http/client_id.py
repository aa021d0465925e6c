"""Reads what callers name their requests by, beside the ids that the gateway gives."""

import re
from collections.abc import Mapping
from typing import Final

ECHO: Final = "x-client-request-id"
"""The header of answers that repeats it."""
_ID: Final = rb"[A-Za-z0-9._:/=+@~-]{1,128}"
_FORM: Final = re.compile(_ID)
# As most clients write it, on a line of its own that is not folded.
_LINE: Final = re.compile(rb"\r\n[Xx]-(?:[Cc]lient-)?[Rr]equest-[Ii][Dd]: (%b)(?=\r\n[^ \t])" % _ID)


def split_client_id(head: bytes) -> tuple[str, bytes]:
    """Return the id that the one header of a head gives, and the head without that header.

    So requests have the same head whose callers name each. A head of another form is returned as
    it is, without an id: a parser then reads it.
    """
    found = _LINE.search(head)
    if found is None:
        return "", head
    rest = head[: found.start()] + head[found.end() :]
    if b"request-id" in rest.lower():
        return "", head
    return found[1].decode(), rest


def echo_line(client_id: str) -> bytes:
    """Return the header line of an answer that repeats the id; nothing if the id is empty."""
    return b"%b: %b\r\n" % (ECHO.encode(), client_id.encode()) if client_id else b""


def parse_client_id(headers: Mapping[bytes, bytes]) -> str:
    """Return what the caller names the request by; empty where it is nothing that is kept.

    Proxies name requests, too: what they chose is no reason to refuse one.
    """
    value = headers.get(b"x-request-id") or headers.get(b"x-client-request-id") or b""
    return value.decode() if _FORM.fullmatch(value) else ""
