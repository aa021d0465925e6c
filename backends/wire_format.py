"""Reads and writes fields of protocol buffers, such as ONNX files, without their schema."""

import mmap
from collections.abc import Iterator

# Wire types of protocol buffers.
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_CONTINUES = 0x80


class Span:
    """One field of a protocol buffer: a number, or where a message's bytes are in the file.

    The field, with its number and length, begins at `begin`, and its content at `start`.
    """

    def __init__(
        self, file: mmap.mmap | bytes, start: int, end: int, *, begin: int = 0, number: int = 0
    ) -> None:
        if end > len(file):
            raise ValueError("cut short")
        self._file, self._begin, self._start, self._end = file, begin, start, end
        self.number = number

    def __iter__(self) -> Iterator[tuple[int, "Span"]]:
        at = self._start
        while at < self._end:
            begin = at
            key, at = self._varint(at)
            kind = key & 7
            number, length = 0, 0
            if kind == _VARINT:
                number, at = self._varint(at)
            elif kind == _BYTES:
                length, at = self._varint(at)
            elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
                length = 8 if kind == _EIGHT_BYTES else 4
            else:
                raise ValueError("unknown wire type")
            yield key >> 3, Span(self._file, at, at + length, begin=begin, number=number)
            at += length

    @property
    def whole(self) -> bytes:
        """The bytes of the field."""
        return self._file[self._begin : self._end]

    @property
    def content(self) -> bytes:
        """The bytes of the field's content."""
        return self._file[self._start : self._end]

    def text(self) -> str:
        """Return the content as text."""
        return self.content.decode()

    def _varint(self, at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = self._file[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < _CONTINUES:
                return value, at


def write_field(number: int, content: bytes) -> bytes:
    """Return a field whose content is a text, bytes or a message."""
    return _write_varint(number << 3 | _BYTES) + _write_varint(len(content)) + content


def _write_varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | _CONTINUES]) + _write_varint(high) if high else bytes([low])
