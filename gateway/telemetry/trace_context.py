"""Reads the W3C trace context of requests. The gateway passes it on as one string.

The string is a valid `traceparent` of version 00. If there is a `tracestate`, it follows after a
space. If the request has no trace context, the string is empty.
"""

import re
from collections.abc import Iterable
from random import getrandbits
from typing import Final

SAMPLED: Final = 1
LENGTH: Final = 55
"""The length of a `traceparent`. A `tracestate` follows after a space."""
MOST_LINES: Final = 3
"""The most header lines that `split_context` removes from a request."""
_LONGEST_STATE = 512
ODD: Final = "13579bdf"
"""If the flag `sampled` is set, the last hexadecimal digit of the flags is one of these digits."""
_IDS = rb"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_VALUE = re.compile(rb"(?:00-(%b)|(?!00|ff)[0-9a-f]{2}-(%b)(?:-.*)?)" % (_IDS, _IDS))
# The form of the header field that most clients write. Other forms are left to a parser.
_PARENT_LINE = re.compile(rb"\r\n[Tt]raceparent: (00-%b)(?=\r\n[^ \t])" % _IDS)
_STATE_LINE = re.compile(rb"\r\n[Tt]racestate: ([ -~]*)(?=\r\n[^ \t])")
MARK: Final = b"raceparent: 00-"
"""These bytes are in every request from which `split_context` takes a trace context."""


def split_context(request: bytes) -> tuple[str, bytes]:
    """Return a request's trace context, and the request without the trace context.

    If two requests differ only in their trace contexts, the second result is equal for both. If the
    head has an unusual form, the function returns an empty context and the unchanged request. A
    parser then reads the head, and `context_of` finds the context among the header fields.
    """
    start = request.find(MARK) - 3
    found = _PARENT_LINE.match(request, start) if start > 0 else None
    # The field must be in the head, because removing bytes of the body would change the body's
    # length. The line break before the field can itself be the end of the blank line.
    if found is None or request.find(b"\r\n\r\n", 0, start + 2) >= 0:
        return "", request
    rest = request[:start] + request[found.end() :]
    if b"race" not in rest:
        return found[1].decode(), rest
    if b"raceparent" in rest:
        return "", request
    head, mark, body = rest.partition(b"\r\n\r\n")
    head += mark
    states = _STATE_LINE.findall(head)
    if len(states) >= MOST_LINES or sum(map(len, states)) > _LONGEST_STATE:
        return "", request  # the parser enforces the limits on heads
    return _text(found[1], states), _STATE_LINE.sub(b"", head) + body


def context_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the trace context in `headers`, whose names are in lower case."""
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value)
        elif name == b"tracestate":
            states.append(value)
    found = _VALUE.fullmatch(parents[0]) if len(parents) == 1 else None
    return "" if found is None else _text(b"00-" + (found[1] or found[2]), states)


def is_sampled(context: str) -> bool:
    """Return whether the `sampled` flag of a context is set."""
    return context[54] in ODD


def unsampled(context: str) -> str:
    """Return `context` without the flag `sampled`. If `context` is empty, return a new context."""
    if not context:
        return f"00-{getrandbits(128) or 1:032x}-{getrandbits(64) or 1:016x}-00"
    flags = int(context[53:55], 16) & ~SAMPLED
    return f"{context[:53]}{flags:02x}{context[55:]}"


def _text(parent: bytes, states: list[bytes]) -> str:
    state = b",".join(states)
    if not state or len(state) > _LONGEST_STATE or not state.isascii():
        return parent.decode()
    return f"{parent.decode()} {state.decode()}"
