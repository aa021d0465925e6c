"""Packs up to a thousand events of one event log into a block.

Each block is one entry of the event stream in Redis. The payload of a block is a msgpack list of
the log's records. Their bytes are copied into the block without being decoded.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from sluicegate.gateway.types import RequestEvent

STREAM: Final = "sg:events"
SHIPPED: Final = "{sg:events}:shipped"
"""The key of a Redis hash that holds the last shipped sequence number of each log. The key is in
the same hash slot as the stream."""

_packer = msgspec.msgpack.Encoder().encode


class MalformedBlock(Exception):
    """A stream entry is not a valid block."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the events of one log with the sequence numbers `first` to `last`.

    If `lost` is set, these events cannot be read.
    """

    log_id: str
    first: int
    last: int
    payload: bytes
    lost: bool = False

    @property
    def size(self) -> int:
        """The number of sequence numbers from `first` to `last`, including both."""
        return self.last - self.first + 1

    def fields(self) -> list[bytes | str | int]:
        """Return the fields of the stream entry for the block: names and values in turn."""
        fields: list[bytes | str | int] = ["log", self.log_id, "first", self.first]
        fields += ["last", self.last, "payload", self.payload]
        return [*fields, "lost", 1] if self.lost else fields


def pack(log_id: str, first: int, payloads: Sequence[bytes]) -> Block:
    """Return a block of consecutive records. The first one has the sequence number `first`."""
    last = first + len(payloads) - 1
    payload = _packer([msgspec.Raw(p) for p in payloads])
    return Block(log_id=log_id, first=first, last=last, payload=payload)


def gap(log_id: str, first: int, last: int) -> Block:
    """Return a block that reports the events `first` to `last` as lost."""
    return Block(log_id=log_id, first=first, last=last, payload=b"", lost=True)


def from_fields(fields: Mapping[bytes, bytes]) -> Block:
    """Return the block that a stream entry contains, without decoding the payload.

    Raises:
        MalformedBlock: a field is missing or wrong.
    """
    try:
        block = Block(
            log_id=fields[b"log"].decode(),
            first=int(fields[b"first"]),
            last=int(fields[b"last"]),
            payload=fields[b"payload"],
            lost=b"lost" in fields,
        )
    except (KeyError, ValueError) as error:
        raise MalformedBlock(f"the entry's fields are wrong: {error}") from error
    if not 0 < block.first <= block.last < 2**63:
        raise MalformedBlock("the entry's sequence numbers are wrong")
    return block


class PartialBlock(NamedTuple):
    """Holds the valid events of a malformed block, and its other records (`wrong`).

    `numbers` holds the sequence numbers of `events`, in the same order.
    """

    events: list[RequestEvent]
    numbers: list[int]
    wrong: list[bytes]


class Unpacker:
    """Decodes the events of blocks."""

    def __init__(self) -> None:
        self._list = msgspec.msgpack.Decoder(list[msgspec.Raw])
        self._events = msgspec.msgpack.Decoder(list[RequestEvent])
        self._event = msgspec.msgpack.Decoder(RequestEvent)

    def events(self, block: Block) -> list[RequestEvent]:
        """Return the events of `block`.

        Raises:
            MalformedBlock: a record is not an event, or the number of records is wrong.
        """
        if block.lost:
            return []
        try:
            events = self._events.decode(block.payload)
        except msgspec.DecodeError as error:
            raise MalformedBlock(f"the payload is not a list of events: {error}") from error
        if len(events) != block.size:
            raise MalformedBlock("the payload holds a wrong number of events")
        return events

    def decode_partially(self, block: Block) -> PartialBlock:
        """Return the valid events of a malformed `block`, and its other records.

        Records beyond the block's last sequence number count as invalid, because another block
        contains the events with these numbers.
        """
        found = PartialBlock([], [], [])
        try:
            records = self._list.decode(block.payload)
        except msgspec.DecodeError:
            return PartialBlock([], [], [block.payload])
        for number, record in enumerate(records, start=block.first):
            try:
                event = self._event.decode(record) if number <= block.last else None
            except msgspec.DecodeError:
                event = None
            if event is None:
                found.wrong.append(bytes(record))
            else:
                found.events.append(event)
                found.numbers.append(number)
        return found
