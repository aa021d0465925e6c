"""What can be read is counted; what cannot is set aside, and holds up nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.gateway.events.block import Block, gap, pack
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import EventBlock
from sluicegate.gateway.workers.group import StreamEntry
from sluicegate.gateway.workers.ledger_writer import LedgerWriter, merged
from tests.support.events import START, make_event
from tests.support.ledgers import open_ledger, sums


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path) as opened:
        yield opened


def entry(block: Block) -> StreamEntry:
    flat = [f if isinstance(f, bytes) else str(f).encode() for f in block.fields()]
    return StreamEntry(b"1-0", dict(zip(flat[::2], flat[1::2], strict=True)))


def block_of(first: int, count: int) -> Block:
    numbers = range(first, first + count)
    return pack("w0-1", first, [msgspec.msgpack.encode(make_event(n)) for n in numbers])


def test_entries_are_committed_with_their_mark(ledger: Ledger) -> None:
    result = LedgerWriter(ledger).write([entry(block_of(1, 3)), entry(block_of(4, 2))])

    assert result.recorded.counted == 5
    assert result.oldest == START
    assert ledger.recorder.high_water(["w0-1"]) == {"w0-1": 5}


def test_blocks_that_follow_each_other_are_merged(ledger: Ledger) -> None:
    unpacker = LedgerWriter(ledger)
    whole = [unpacker._unpack(block_of(first, 2)) for first in (1, 3, 5)]
    other = msgspec.structs.replace(unpacker._unpack(block_of(1, 2)), log_id="w1-1")
    lost = EventBlock(log_id="w0-1", first=7, last=9, lost=True)
    after = unpacker._unpack(block_of(10, 1))
    beyond = unpacker._unpack(block_of(12, 1))  # record 11 comes later

    found = merged([whole[0], other, whole[1], whole[2], lost, after, beyond])

    assert [(b.log_id, b.first, b.last, len(b.events)) for b in found] == [
        ("w0-1", 1, 6, 6),
        ("w1-1", 1, 2, 2),
        ("w0-1", 7, 9, 0),
        ("w0-1", 10, 10, 1),
        ("w0-1", 12, 12, 1),
    ]


def test_a_block_with_more_records_than_numbers_counts_none_twice(ledger: Ledger) -> None:
    long = msgspec.structs.replace(block_of(1, 3), last=2)

    result = LedgerWriter(ledger).write([entry(long), entry(block_of(3, 2))])

    assert (result.recorded.counted, result.recorded.dead) == (4, 1)
    assert sums(ledger).events == 4


def test_a_block_with_fewer_records_than_numbers_is_set_aside(ledger: Ledger) -> None:
    short = msgspec.structs.replace(block_of(1, 3), last=4)

    result = LedgerWriter(ledger).write([entry(short)])

    assert (result.recorded.counted, result.recorded.dead) == (3, 1)
    assert ledger.recorder.high_water(["w0-1"]) == {"w0-1": 4}


def test_a_block_that_was_counted_before_is_not_counted_with_the_next(ledger: Ledger) -> None:
    writer = LedgerWriter(ledger)
    writer.write([entry(block_of(1, 3))])

    result = writer.write([entry(block_of(1, 3)), entry(block_of(4, 2))])

    assert (result.recorded.counted, result.recorded.duplicates) == (2, 3)
    assert ledger.recorder.high_water(["w0-1"]) == {"w0-1": 5}


def test_an_entry_that_is_no_block_is_buried_beside_good_ones(ledger: Ledger) -> None:
    strange = StreamEntry(b"1-0", {b"hello": b"world"})

    result = LedgerWriter(ledger).write([strange, entry(block_of(1, 2)), strange])

    assert result.recorded.counted == 2
    assert sums(ledger).dead_letters == 1


def test_records_that_are_no_events_do_not_hold_up_their_block(ledger: Ledger) -> None:
    payloads = [
        msgspec.msgpack.encode(make_event(1)),
        b"\x2a",
        msgspec.msgpack.encode(make_event(3)),
    ]

    result = LedgerWriter(ledger).write([entry(pack("w0-1", 1, payloads))])

    assert (result.recorded.counted, result.recorded.dead) == (2, 1)
    assert ledger.recorder.high_water(["w0-1"]) == {"w0-1": 3}


@pytest.mark.parametrize(
    "wrong", [{"client_id": "x" * 129}, {"code": "a\0b"}, {"id": "r" * 129}, {"status": 2**31}]
)
def test_an_event_that_fits_no_column_does_not_hold_up_its_block(
    ledger: Ledger, wrong: dict[str, Any]
) -> None:
    unfit = msgspec.structs.replace(make_event(2), **wrong)
    payloads = [msgspec.msgpack.encode(each) for each in (make_event(1), unfit, make_event(3))]

    result = LedgerWriter(ledger).write([entry(pack("w0-1", 1, payloads))])

    assert (result.recorded.counted, result.recorded.dead) == (2, 1)
    assert ledger.recorder.high_water(["w0-1"]) == {"w0-1": 3}


def test_a_payload_that_is_nothing_at_all_is_kept_and_passed(ledger: Ledger) -> None:
    broken = msgspec.structs.replace(block_of(1, 3), payload=b"\xc1\xc1")

    result = LedgerWriter(ledger).write([entry(broken), entry(block_of(4, 1))])

    assert (result.recorded.counted, result.recorded.dead) == (1, 1)
    assert ledger.recorder.high_water(["w0-1"]) == {"w0-1": 4}


def test_a_gap_is_counted_as_lost(ledger: Ledger) -> None:
    result = LedgerWriter(ledger).write([entry(gap("w0-1", 1, 4))])

    assert result.recorded.lost == 4
    assert result.oldest == 0
