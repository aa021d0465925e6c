"""A block carries events through the stream, and what is no block is refused."""

from typing import get_type_hints

import msgspec
import pytest

from sluicegate.gateway.events.block import Block, MalformedBlock, Unpacker, from_fields, gap, pack
from sluicegate.gateway.types import RequestEvent, RequestUsage
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


@pytest.mark.parametrize(
    "unit", [field.name for field in msgspec.structs.fields(RequestUsage) if field.required]
)
def test_an_event_that_lacks_a_unit_is_wrong(unit: str) -> None:
    fields = list(msgspec.to_builtins(make_event(1)))
    place = RequestEvent.__struct_fields__.index("usage")
    fields[place] = {name: n for name, n in fields[place].items() if name != unit}
    record = msgspec.msgpack.encode(fields)

    assert Unpacker().decode_partially(pack("w0-1", 7, [record])) == ([], [], [record])


def test_events_of_version_0_1_0_and_of_this_one_can_be_exchanged() -> None:
    event = msgspec.structs.replace(make_event(1), client_id="order-1")
    fields = msgspec.to_builtins(event)
    # Version 0.1.0 has the fields up to `client_id`, and ignores later ones.
    known = RequestEvent.__struct_fields__.index("client_id") + 1
    names = RequestEvent.__struct_fields__[:known]
    former = msgspec.defstruct("Former", [*map(_typed, names)], array_like=True)

    received = Unpacker().events(pack("w0-1", 7, [msgspec.msgpack.encode(fields[:known])]))
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=former)

    assert received == [event]
    assert msgspec.to_builtins(read) == fields[:known]


def _typed(name: str) -> tuple[str, type]:
    return name, get_type_hints(RequestEvent)[name]


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
