"""Bounds the number of JSON values in a body before it is decoded, and of items after that.

An empty list is three bytes of text and more than a hundred of memory, and a number such as
`5e-324` takes the decoder 5 µs, three hundred times as long as `5`. The checks are a few passes at
memory speed. They read a body in pieces: one step over all of it would keep the GIL, and with it
the event loop, for tens of milliseconds.
"""

from collections.abc import Iterator, Sized
from typing import Final

from sluicegate.gateway.errors import InvalidRequest, PayloadTooLarge

MAX_UNCHECKED_BYTES: Final = 16 * 1024
"""Bodies up to this size cannot hold the event loop, whatever their numbers are."""
# Numbers beyond what a double holds exactly, each 5 to 30 µs to the decoder.
_MAX_SLOW_NUMBERS = 2_000
_SHAPES = bytes.maketrans(b"123456789E", b"000000000e")
_MANY_DIGITS = b"0" * 20
_PIECE = 128 * 1024


def check_json_size(raw: bytes, *, max_values: int) -> None:
    """Check that a body holds at most `max_values` values, and few numbers that decode slowly.

    Invalid JSON may pass; the decoder refuses it.

    Raises:
        PayloadTooLarge: it holds more values.
        InvalidRequest: too many numbers have a long row of digits or an extreme exponent.
    """
    is_fast = len(raw) <= MAX_UNCHECKED_BYTES or _slow_numbers(raw) <= _MAX_SLOW_NUMBERS
    if is_fast and (len(raw) <= max_values or _most_values(raw) <= max_values):
        return
    # What was counted may be inside strings.
    syntax = _without_strings(raw, max_values)
    if syntax is None or _has_more_values(syntax, max_values):
        raise PayloadTooLarge(
            f"The body holds more than {max_values} JSON values; send the items in several"
            " requests."
        )
    if len(raw) > MAX_UNCHECKED_BYTES and _slow_numbers(syntax) > _MAX_SLOW_NUMBERS:
        raise InvalidRequest(
            f"More than {_MAX_SLOW_NUMBERS} numbers in the body have over 20 digits or exponents"
            " of three digits; round them to 17 digits, and to 0 what is as small."
        )


def _pieces(raw: bytes) -> Iterator[bytes]:
    """Yield a body in parts, none of which ends between a backslash and what it escapes."""
    start = 0
    while piece := raw[start : start + _PIECE]:
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = raw[start : start + _PIECE + 1]
        yield piece
        start += len(piece)


def _most_values(raw: bytes) -> int:
    """Return an upper bound of the number of values: a list's are one more than its commas."""
    return 1 + sum(
        [piece.count(b",") + piece.count(b"[") + piece.count(b"{") for piece in _pieces(raw)]
    )


def _has_more_values(syntax: bytes, maximum: int) -> bool:
    most = _most_values(syntax)
    if not maximum < most <= 2 * maximum + 2:
        return most > maximum
    # Lists and objects that hold nothing have no value before a first comma. They are half of the
    # bound at most.
    dense = syntax.translate(None, b" \t\r\n")
    return most - dense.count(b"[]") - dense.count(b"{}") > maximum


def _slow_numbers(raw: bytes) -> int:
    """Return about how many numbers decode slowly; one of many digits counts several times.

    A number that lies in two pieces may not be counted.
    """
    count = 0
    for piece in _pieces(raw):
        shapes = piece.translate(_SHAPES, b".+")
        count += shapes.count(_MANY_DIGITS) + shapes.count(b"e000") + shapes.count(b"e-000")
    return count


def _without_strings(raw: bytes, max_values: int) -> bytes | None:
    """Return a body without the contents of its strings, `None` where these are too many."""
    # Each value may be a string and have a name that is one, of two quotation marks each.
    most = 4 * max_values
    marks = 0
    syntax = []
    for piece in _pieces(raw):
        unescaped = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        parts = unescaped.split(b'"')
        # An odd number of marks before it: the piece begins inside a string.
        syntax += parts[marks % 2 :: 2]
        marks += len(parts) - 1
        if marks > most:
            return None
    return b"".join(syntax)


def check_item_count(items: Sized, maximum: int) -> None:
    """Check that a request has items, and no more than `maximum`.

    Raises:
        InvalidRequest: it has none.
        PayloadTooLarge: it has more.
    """
    if not items:
        raise InvalidRequest("The input is empty; send at least one item.")
    if len(items) > maximum:
        raise PayloadTooLarge(
            f"{len(items)} items are more than {maximum}; send them in several requests."
        )
