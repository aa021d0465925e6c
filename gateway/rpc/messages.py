"""Makes the classes of the protobuf messages that `.proto` files define, and bounds messages.

The classes are in a pool of their own: clients of the protocol put messages of the same names into
the default one, and may run in this process.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from sluicegate.gateway.errors import InvalidRequest, PayloadTooLarge

Message = Any  # the classes are made at run time
PACKAGE: Final = "inference"
ENVOY: Final = "envoy"
# The paths, by the numbers of fields, of those that are messages in their turn.
_MESSAGES: Final = frozenset({(4,), (5,), (6,), (5, 4), (5, 5), (6, 2)})
_SHAPE: Final = (5, 3)
# Wire types of protobuf.
_VARINT, _LENGTH = 0, 2
_SIZES: Final = {1: 8, 5: 4}
_LONGEST_VARINT: Final = 10


class MessageTable:
    """Has the class of each message of a package, by its name in the definition."""

    def __init__(self, package: str = PACKAGE) -> None:
        self._package = package
        self._pool = DescriptorPool()
        compiled = Path(__file__).with_name(f"{package}.binpb")  # by `make proto`
        for file in FileDescriptorSet.FromString(compiled.read_bytes()).file:
            self._pool.Add(file)

    def __getitem__(self, name: str) -> Message:
        """Return a class; equal names have the same one."""
        return GetMessageClass(self._pool.FindMessageTypeByName(f"{self._package}.{name}"))


def decode_message(kind: Message, raw: bytes) -> Message:
    """Return the message of that class that `raw` is.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise InvalidRequest(f"The message is no `{kind.DESCRIPTOR.name}`.") from error


def check_fields(raw: bytes, *, most: int) -> None:
    """Count the fields of a `ModelInferRequest`, sizes of shapes among them, before it is decoded.

    Two bytes are an empty input, and the decoder makes an object of each: 8 MB took a worker beyond
    1 GB. The decoder judges malformed messages.

    Raises:
        PayloadTooLarge: they are more than `most`.
    """
    if len(raw) <= most:
        return
    waiting: list[tuple[tuple[int, ...], int, int]] = [((), 0, len(raw))]
    left = most
    with suppress(IndexError):  # the decoder refuses what is malformed
        while waiting:
            path, at, end = waiting.pop()
            while at < end:
                number, start, at = _field(raw, at)
                inner = (*path, number)
                left -= 1 + (at - start if inner == _SHAPE else 0)
                if left < 0:
                    raise PayloadTooLarge(
                        f"The message has more than {most} fields; send several requests."
                    )
                if inner in _MESSAGES:
                    waiting.append((inner, start, at))


def _field(raw: bytes, at: int) -> tuple[int, int, int]:
    """Return the number of the field at a place, where its content begins, and where it ends."""
    tag, at = _varint(raw, at)
    kind = tag & 7
    size = _SIZES.get(kind, 0)
    if kind == _VARINT:
        _, at = _varint(raw, at)
    elif kind == _LENGTH:
        size, at = _varint(raw, at)
    return tag >> 3, at, at + size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends.

    Raises:
        IndexError: the bytes end before, or it has more than any number has.
    """
    value = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the others are followed by more
            return value, at
    raise IndexError
