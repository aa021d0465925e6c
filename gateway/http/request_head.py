"""Reads heads of well-known forms without a parser, and the ids that callers give requests."""

import re
from collections.abc import Mapping
from typing import Final

# As clients write these lines, each on a line of its own that is not folded.
_LENGTH_LINE: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([1-9][0-9]{0,8})(?=\r\n[^ \t])")
_LENGTH_MARK: Final = b"ength: "
_BEFORE_MARK: Final = len(b"\r\nContent-L")
_ID: Final = rb"[A-Za-z0-9._:/=+@~-]{1,128}"
_ID_FORM: Final = re.compile(_ID)
_ID_LINE: Final = re.compile(
    rb"\r\n[Xx]-(?:[Cc]lient-)?[Rr]equest-[Ii][Dd]: (%b)(?=\r\n[^ \t])" % _ID
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


def split_fields(head: bytes) -> list[tuple[bytes, bytes]]:
    """Return names, in lower case, and values of the fields of a whole head that is well-formed."""
    fields = (line.partition(b":") for line in head.split(b"\r\n")[1:-2])
    return [(name.lower(), value.strip(b" \t")) for name, _, value in fields]


def split_client_id(head: bytes) -> tuple[str, bytes]:
    """Return the id that the one header of a head gives, and the head without that header.

    So requests have the same head whose callers name each. A head of another form is returned as
    it is, without an id: a parser then reads it.
    """
    found = _ID_LINE.search(head)
    if found is None:
        return "", head
    rest = head[: found.start()] + head[found.end() :]
    if b"request-id" in rest.lower():
        return "", head
    return found[1].decode(), rest


def echo_line(client_id: str) -> bytes:
    """Return the header line of an answer that repeats the id; nothing if the id is empty."""
    return b"x-client-request-id: %b\r\n" % client_id.encode() if client_id else b""


def parse_client_id(headers: Mapping[bytes, bytes]) -> str:
    """Return what the caller names the request by; empty where it is nothing that is kept.

    Proxies name requests, too: what they chose is no reason to refuse one.
    """
    value = headers.get(b"x-request-id") or headers.get(b"x-client-request-id") or b""
    return value.decode() if _ID_FORM.fullmatch(value) else ""
