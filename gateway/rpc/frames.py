"""Bounds the HTTP/2 frames (RFC 9113) of a client before grpcio sees them.

grpcio bounds neither the bytes nor the time of a head, and its threads hold the worker while one
arrives. It applies its limit on metadata only after decoding. Here a head is not decoded; its
fields are counted.
"""

from collections.abc import Iterator
from typing import Final

from sluicegate.wire.http.request_head import MAX_FIELDS, MAX_HEAD_BYTES

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEAD_BYTES: Final = 9
_DATA, _HEADERS, _GOAWAY, _CONTINUATION = 0, 1, 7, 9
_OF_HEADS: Final = frozenset({_HEADERS, _CONTINUATION})
_END_HEADERS, _PADDED, _PRIORITY = 4, 8, 32
_MOST_FIELDS: Final = 2 * MAX_FIELDS
"""The most fields of a head that reaches grpcio, which takes milliseconds for thousands of them.
A call with more than `MAX_FIELDS` is refused; with more than this, its connection is closed."""
# Frames cost credit, which comes back with time: this bounds a client's frames in a second and at
# once. A frame costs this listener about a microsecond, and grpcio more.
_MOST_CREDIT: Final = 4_000
_CREDIT_PER_SECOND: Final = 100_000
_DATA_COST: Final = 1
_HEAD_COST: Final = 40
_HEAD_BYTES_PER_CREDIT: Final = 8
_SHORTEST_PAUSE: Final = 0.01
# Frames that a client sends rarely, or in answer to many others: PING, SETTINGS, RST_STREAM, ...
_OTHER_COST: Final = 50


class BadFrames(Exception):
    """Says why a connection has to be closed. `code` is an error code of HTTP/2."""

    PROTOCOL, CALM = 1, 11

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ClientFrames:
    """Receives the bytes of a client in pieces, and returns those that may be passed on.

    A head waits here until it is whole, and everything else passes as it comes. `now` is a time in
    seconds of one clock.
    """

    def __init__(self, *, now: float) -> None:
        self._held: bytes | bytearray = b""
        self._at = 0
        """Where the next frame begins, as an offset into the held bytes or beyond them."""
        self._head = -1
        """Where the unfinished head begins in the held bytes; negative: there is none."""
        self._is_open = False
        self._credit = float(_MOST_CREDIT)
        self._credited_at = now
        self.waiting_since: float | None = now
        """When the preface or a head began whose rest has not arrived."""

    @property
    def is_open(self) -> bool:
        """Whether the client has sent HTTP/2's preface."""
        return self._is_open

    @property
    def pause(self) -> float:
        """Seconds to wait before reading on, if the client has sent too many frames at once."""
        return 0.0 if self._credit >= 0 else _SHORTEST_PAUSE - self._credit / _CREDIT_PER_SECOND

    def receive(self, data: bytes, now: float) -> bytes | bytearray:
        """Return the held bytes and the bytes of `data` that may be passed on.

        Raises:
            BadFrames: the connection has to be closed.
        """
        earned = (now - self._credited_at) * _CREDIT_PER_SECOND
        self._credit = min(_MOST_CREDIT, self._credit + earned)
        self._credited_at = now
        received: bytes | bytearray = data
        if self._held:
            received = bytearray(self._held) if isinstance(self._held, bytes) else self._held
            received += data
        if not self._is_open and not self._has_preface(received):
            self._held = received
            return b""
        self._scan(received)
        passed = self._head if self._head >= 0 else min(self._at, len(received))
        self._at -= passed
        self._head = min(self._head, 0)
        passed_on = received[:passed]
        if isinstance(received, bytearray):
            del received[:passed]  # without a copy of the rest
            self._held = received
        else:
            self._held = received[passed:]
        if not self._held or self.pause:
            self.waiting_since = None
        elif passed or self.waiting_since is None:
            self.waiting_since = now
        return passed_on

    def _has_preface(self, received: bytes | bytearray) -> bool:
        if not PREFACE.startswith(received[: len(PREFACE)]):
            raise BadFrames(BadFrames.PROTOCOL, "This port speaks gRPC, over HTTP/2 only.")
        if len(received) < len(PREFACE):
            return False
        self._is_open, self._at = True, len(PREFACE)
        return True

    def _scan(self, received: bytes | bytearray) -> None:
        """Move to the first frame that has not arrived, or for which the client has no credit."""
        at, size = self._at, len(received)
        while at + _FRAME_HEAD_BYTES <= size and self._credit >= 0:
            length = received[at] << 16 | received[at + 1] << 8 | received[at + 2]
            kind = received[at + 3]
            end = at + _FRAME_HEAD_BYTES + length
            if self._head >= 0 or kind in _OF_HEADS:
                if not self._scan_head(received, kind, at, end):
                    break
            else:
                self._credit -= _DATA_COST if length and kind == _DATA else _OTHER_COST
            at = end
        self._at = at

    def _scan_head(self, received: bytes | bytearray, kind: int, at: int, end: int) -> bool:
        """Check a frame of a head; return false where the rest of it has not arrived."""
        begins = self._head in (-1, at)
        if kind != (_HEADERS if begins else _CONTINUATION):
            raise _DISORDER
        if begins:
            self._head = at
        size = end - self._head
        if size > MAX_HEAD_BYTES:
            raise _TOO_LARGE
        if end > len(received):
            return False
        if not received[at + 4] & _END_HEADERS:
            self._credit -= _OTHER_COST
            return True
        # Each field has at least one byte.
        if size > _MOST_FIELDS and _has_more_fields(received[self._head : end]):
            raise _TOO_LARGE
        self._credit -= _HEAD_COST + size // _HEAD_BYTES_PER_CREDIT
        self._head = -1
        return True


def _has_more_fields(frames: bytes | bytearray) -> bool:
    """Tell whether a head has more fields than are allowed, or bytes that are no field.

    A field is an index, or has a name and a value besides (RFC 7541, 6). Names and values are
    skipped, so that counting needs neither the table nor the Huffman code.
    """
    block = b"".join(_fragments(frames))
    at, fields = 0, 0
    try:
        while at < len(block):
            fields += 1
            first = block[at]
            if first & 0x80:  # indexed
                _, at = _integer(block, at, 0x7F)
            elif first >> 5 == 1:  # the size of the table
                _, at = _integer(block, at, 0x1F)
            else:
                index, at = _integer(block, at, 0x3F if first & 0x40 else 0x0F)
                for _ in range(1 if index else 2):
                    length, at = _integer(block, at, 0x7F)
                    at += length
            if fields > _MOST_FIELDS:
                return True
    except IndexError:
        return True
    return False


def _fragments(frames: bytes | bytearray) -> Iterator[bytes | bytearray]:
    at = 0
    while at < len(frames):
        length = int.from_bytes(frames[at : at + 3], "big")
        kind, flags, start = frames[at + 3], frames[at + 4], at + _FRAME_HEAD_BYTES
        at = end = start + length
        if kind == _HEADERS and flags & _PADDED:
            end -= frames[start]
            start += 1
        if kind == _HEADERS and flags & _PRIORITY:
            start += 5
        yield frames[start:end]


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return an integer and where it ends (RFC 7541, 5.1).

    Raises:
        IndexError: the block ends before, or the integer is longer than any in use.
    """
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in range(0, 28, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the others are followed by more
            return value, at
    raise IndexError


class ServerFrames:
    """Follows the bytes sent to a client, to know where a frame may be added."""

    def __init__(self) -> None:
        self._left = 0
        self._part = b""

    @property
    def is_between(self) -> bool:
        """Whether the last frame is whole."""
        return not self._left and not self._part

    def follow(self, data: bytes) -> None:
        """Note the next piece."""
        at = self._left
        if self._part:
            data, self._part = self._part + data, b""
        size = len(data)
        while at + _FRAME_HEAD_BYTES <= size:
            at += _FRAME_HEAD_BYTES + (data[at] << 16 | data[at + 1] << 8 | data[at + 2])
        if at < size:
            self._part, at = data[at:], size
        self._left = at - size


def goaway(error: BadFrames) -> bytes:
    """Return the frame that ends a connection; its text says the reason."""
    text = str(error).encode()
    length = 8 + len(text)
    head = length.to_bytes(3, "big") + bytes([_GOAWAY, 0]) + bytes(4)
    # The highest number promises nothing about calls: some may have begun.
    return head + (2**31 - 1).to_bytes(4, "big") + error.code.to_bytes(4, "big") + text


_DISORDER: Final = BadFrames(BadFrames.PROTOCOL, "A frame is in the wrong place of a head.")
_TOO_LARGE: Final = BadFrames(
    BadFrames.CALM,
    f"The metadata of a call may have {MAX_HEAD_BYTES} bytes and {MAX_FIELDS} fields; send fewer.",
)
