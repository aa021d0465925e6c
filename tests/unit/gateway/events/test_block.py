"""A block carries events through the stream, and what is no block is refused."""

import msgspec
import pytest

from gateway.events.block import Block, MalformedBlock, Unpacker, from_fields, gap, pack
from tests.support.events import make_event


def fields_of(block: Block) -> dict[bytes, bytes]:
    flat = [f if isinstance(f, bytes) else str(f).encode() for f in block.fields()]
    return dict(zip(flat[::2], flat[1::2], strict=True))


def test_events_come_out_as_they_went_in() -> None:
    events = [make_event(number) for number in range(3)]
    block = pack("w0-1", 7, [msgspec.msgpack.encode(event) for event in events])

    received = from_fields(fields_of(block))

    assert (received.first, received.last, received.lost) == (7, 9, False)
    assert Unpacker().events(received) == events


def test_a_gap_says_what_is_lost() -> None:
    received = from_fields(fields_of(gap("w0-1", 4, 9)))

    assert received.lost
    assert received.size == 6
    assert Unpacker().events(received) == []


@pytest.mark.parametrize(
    "change",
    [
        {b"first": b"x"},
        {b"first": b"0"},
        {b"first": b"9"},
        {b"last": b"99999999999999999999"},
        {b"log": b"\xff"},
    ],
)
def test_wrong_fields_are_refused(change: dict[bytes, bytes]) -> None:
    fields = fields_of(pack("w0-1", 1, [b"\x01"]))

    with pytest.raises(MalformedBlock):
        from_fields(fields | change)


def test_missing_fields_are_refused() -> None:
    with pytest.raises(MalformedBlock):
        from_fields({b"hello": b"world"})


def test_one_wrong_record_does_not_hide_the_others() -> None:
    good = msgspec.msgpack.encode(make_event(1))
    block = pack("w0-1", 7, [b"\x2a", good])

    with pytest.raises(MalformedBlock):
        Unpacker().events(block)

    assert Unpacker().decode_partially(block) == ([make_event(1)], [8], [b"\x2a"])


def test_records_beyond_the_last_number_are_no_events() -> None:
    """Else the block that has their numbers would count them a second time."""
    records = [msgspec.msgpack.encode(make_event(number)) for number in (1, 2, 3)]
    block = msgspec.structs.replace(pack("w0-1", 1, records), last=2)

    found = Unpacker().decode_partially(block)

    assert found == ([make_event(1), make_event(2)], [1, 2], [records[2]])


def test_a_payload_of_another_number_of_events_is_refused() -> None:
    block = pack("w0-1", 1, [msgspec.msgpack.encode(make_event(1))])

    with pytest.raises(MalformedBlock):
        Unpacker().events(msgspec.structs.replace(block, last=2))
