"""Reads heads of well-known forms without a parser."""

import re
from typing import Final

from gateway.errors import HeaderFieldsTooLarge
from wire.http.request_head import TOO_LARGE

# As clients write it, on a line of its own that is not folded.
_LENGTH_LINE: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([1-9][0-9]{0,8})(?=\r\n[^ \t])")
_LENGTH_MARK: Final = b"ength: "
_BEFORE_MARK: Final = len(b"\r\nContent-L")


def header_fields_too_large() -> HeaderFieldsTooLarge:
    """Return the error for a head above the bounds."""
    return HeaderFieldsTooLarge(TOO_LARGE)


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
