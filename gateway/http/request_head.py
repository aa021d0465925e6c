"""Reads heads of well-known forms without a parser, and the ids that callers give requests."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

# As clients write these lines, each on a line of its own that is not folded.
_LENGTH_LINE: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([1-9][0-9]{0,8})(?=\r\n[^ \t])")
_LENGTH_MARK: Final = b"ength: "
_BEFORE_MARK: Final = len(b"\r\nContent-L")
_ID: Final = rb"[A-Za-z0-9._:/=+@~-]{1,128}"
_ID_FORM: Final = re.compile(_ID)
_ID_LINE: Final = re.compile(
    rb"\r\n[Xx]-([Cc]lient-)?[Rr]equest-[Ii][Dd]: (%b)(?=\r\n[^ \t])" % _ID
)


class CallerId(NamedTuple):
    """The id that a request has from its caller; both fields are empty if there is none."""

    client_id: str = ""
    """The id in `X-Client-Request-Id`, which a customer chose."""
    proxy_id: str = ""
    """The id in `X-Request-Id`, which a proxy may have given; empty if there is a `client_id`."""


NO_ID: Final = CallerId()


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


def split_caller_id(head: bytes) -> tuple[CallerId, bytes]:
    """Return the id of the caller in a head, and the head without the headers of such ids.

    So requests have the same head whose callers name each. A head of another form is returned as
    it is, without an id: a parser then reads it.
    """
    first, *found = _ID_LINE.split(head)  # for each line: `Client-` or `None`, the id, what follows
    if not found:
        return NO_ID, head
    rest = b"".join([first, *found[2::3]])
    ids = {bool(kind): value.decode() for kind, value in zip(found[::3], found[1::3], strict=True)}
    is_repeated = 3 * len(ids) < len(found)
    if is_repeated or b"request-id" in rest.lower():
        return NO_ID, head
    if True in ids:
        return CallerId(client_id=ids[True]), rest
    return CallerId(proxy_id=ids[False]), rest


def echo_line(caller_id: CallerId) -> bytes:
    """Return the header line of an answer that repeats the id; nothing if the id is empty."""
    value = caller_id.client_id or caller_id.proxy_id
    return b"x-client-request-id: %b\r\n" % value.encode() if value else b""


def parse_caller_id(headers: Mapping[bytes, bytes]) -> CallerId:
    """Return what the caller names the request by; empty where it is nothing that is kept.

    Proxies name requests, too: what they chose is no reason to refuse one.
    """
    client_id = headers.get(b"x-client-request-id", b"")
    if _ID_FORM.fullmatch(client_id):
        return CallerId(client_id=client_id.decode())
    proxy_id = headers.get(b"x-request-id", b"")
    return CallerId(proxy_id=proxy_id.decode()) if _ID_FORM.fullmatch(proxy_id) else NO_ID
