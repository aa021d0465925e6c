"""Writes entries of the event stream to the ledger. Unreadable entries become dead letters."""

from collections.abc import Sequence

import msgspec

from sluicegate.gateway.events.block import Block, MalformedBlock, Unpacker, from_fields
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.recording import UnrecordableBlock
from sluicegate.gateway.ledger.types import EventBlock, Recorded
from sluicegate.gateway.workers.group import StreamEntry


class WriteResult(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the events that were written. `oldest` is the time of the oldest event, or 0."""

    recorded: Recorded
    oldest: int


def merged(blocks: Sequence[EventBlock]) -> list[EventBlock]:
    """Return `blocks`, with consecutive blocks of the same log merged into one block.

    A billing process that lags gets many small blocks. Merging the blocks makes billing faster,
    because writing a large block takes hardly longer than writing a small block.
    """
    found: list[EventBlock] = []
    ends: dict[str, int] = {}
    """The index of each log's last block in `found`."""
    for block in blocks:
        index = ends.get(block.log_id)
        if index is not None and _follows(found[index], block):
            events = [*found[index].events, *block.events]
            found[index] = msgspec.structs.replace(found[index], last=block.last, events=events)
        else:
            ends[block.log_id] = len(found)
            found.append(block)
    return found


def _follows(one: EventBlock, other: EventBlock) -> bool:
    return other.first == one.last + 1 and _is_complete(one) and _is_complete(other)


def _is_complete(block: EventBlock) -> bool:
    """Return whether the block has exactly one event for each sequence number."""
    return not block.wrong and len(block.events) == block.last - block.first + 1


class LedgerWriter:
    """Writes entries of the event stream to `ledger`. Methods block."""

    def __init__(self, ledger: Ledger) -> None:
        self._recorder = ledger.recorder
        self._unpacker = Unpacker()

    def write(self, entries: Sequence[StreamEntry]) -> WriteResult:
        """Commit `entries`, so that the caller can acknowledge them afterwards.

        Raises:
            DependencyUnavailable: some entries were not committed. The caller should write all
                entries again.
        """
        blocks: list[Block] = []
        dead = 0
        for entry in entries:
            try:
                blocks.append(from_fields(entry.fields))
            except MalformedBlock as error:
                payload = msgspec.msgpack.encode(dict(entry.fields))
                self._recorder.add_dead_letter("", str(error), payload)
                dead += 1
        unpacked = [self._unpack(block) for block in blocks]
        recorded = self._record(blocks, unpacked)
        oldest = min((e.time for each in unpacked for e in each.events), default=0)
        recorded = msgspec.structs.replace(recorded, dead=recorded.dead + dead)
        return WriteResult(recorded=recorded, oldest=oldest)

    def _unpack(self, block: Block) -> EventBlock:
        wrong: list[bytes] = []
        numbers: list[int] = []
        try:
            events = self._unpacker.events(block)
        except MalformedBlock:
            events, numbers, wrong = self._unpacker.decode_partially(block)
            wrong = wrong or [block.payload]
        return EventBlock(
            log_id=block.log_id,
            first=block.first,
            last=block.last,
            events=events,
            wrong=wrong,
            lost=block.lost,
            numbers=numbers,
        )

    def _record(self, blocks: Sequence[Block], unpacked: Sequence[EventBlock]) -> Recorded:
        try:
            return self._recorder.record(merged(unpacked))
        except UnrecordableBlock:
            each = [self._record_alone(b, x) for b, x in zip(blocks, unpacked, strict=True)]
        return Recorded(
            counted=sum(r.counted for r in each),
            duplicates=sum(r.duplicates for r in each),
            dead=sum(r.dead for r in each),
            lost=sum(r.lost for r in each),
        )

    def _record_alone(self, block: Block, unpacked: EventBlock) -> Recorded:
        try:
            return self._recorder.record([unpacked])
        except UnrecordableBlock:
            dead = EventBlock(
                log_id=block.log_id, first=block.first, last=block.last, wrong=[block.payload]
            )
            return self._recorder.record([dead])
