"""Writes stream entries to the ledger. Unreadable entries become dead letters."""

from collections.abc import Sequence

import msgspec

from gateway.events.block import Block, MalformedBlock, Unpacker, from_fields
from gateway.ledger.ledger import Ledger
from gateway.ledger.recording import UnrecordableBatch
from gateway.ledger.types import Batch, Recorded
from gateway.workers.group import StreamEntry


class WriteResult(msgspec.Struct, frozen=True, kw_only=True):
    """Counts written events. `oldest` is the time of the oldest event, 0 if there was none."""

    recorded: Recorded
    oldest: int


def merged(batches: Sequence[Batch]) -> list[Batch]:
    """Return `batches`, with consecutive batches of the same log merged.

    The cost of a batch hardly depends on its size, and a billing process that lags gets many small
    batches.
    """
    found: list[Batch] = []
    ends: dict[str, int] = {}
    """The index in `found` of each log's last batch."""
    for batch in batches:
        index = ends.get(batch.log_id)
        if index is not None and _follows(found[index], batch):
            events = [*found[index].events, *batch.events]
            found[index] = msgspec.structs.replace(found[index], last=batch.last, events=events)
        else:
            ends[batch.log_id] = len(found)
            found.append(batch)
    return found


def _follows(one: Batch, other: Batch) -> bool:
    return other.first == one.last + 1 and _is_complete(one) and _is_complete(other)


def _is_complete(batch: Batch) -> bool:
    """Return whether the batch has exactly one event for each sequence number."""
    return not batch.wrong and not batch.lost and len(batch.events) == batch.last - batch.first + 1


class LedgerWriter:
    """Writes entries to `ledger`. Methods block."""

    def __init__(self, ledger: Ledger) -> None:
        self._recorder = ledger.recorder
        self._unpacker = Unpacker()

    def write(self, entries: Sequence[StreamEntry]) -> WriteResult:
        """Commit `entries`. The caller may acknowledge them after this returns.

        Raises:
            DependencyUnavailable: some entries were not committed; write all of them again.
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
        batches = [self._batch(block) for block in blocks]
        recorded = self._record(blocks, batches)
        oldest = min((e.time for batch in batches for e in batch.events), default=0)
        recorded = msgspec.structs.replace(recorded, dead=recorded.dead + dead)
        return WriteResult(recorded=recorded, oldest=oldest)

    def _batch(self, block: Block) -> Batch:
        wrong: list[bytes] = []
        numbers: list[int] = []
        try:
            events = self._unpacker.events(block)
        except MalformedBlock:
            events, numbers, wrong = self._unpacker.decode_partially(block)
            wrong = wrong or [block.payload]
        return Batch(
            log_id=block.log_id,
            first=block.first,
            last=block.last,
            events=events,
            wrong=wrong,
            lost=block.lost,
            numbers=numbers,
        )

    def _record(self, blocks: Sequence[Block], batches: Sequence[Batch]) -> Recorded:
        try:
            return self._recorder.record(merged(batches))
        except UnrecordableBatch:
            each = [self._record_alone(b, x) for b, x in zip(blocks, batches, strict=True)]
        return Recorded(
            counted=sum(r.counted for r in each),
            duplicates=sum(r.duplicates for r in each),
            dead=sum(r.dead for r in each),
            lost=sum(r.lost for r in each),
        )

    def _record_alone(self, block: Block, batch: Batch) -> Recorded:
        try:
            return self._recorder.record([batch])
        except UnrecordableBatch:
            dead = Batch(
                log_id=block.log_id, first=block.first, last=block.last, wrong=[block.payload]
            )
            return self._recorder.record([dead])
