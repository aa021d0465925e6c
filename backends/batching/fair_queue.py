"""Chooses the first row of the next batch with weighted fair queueing.

A flow is the rows of one scope (tenant) in one traffic class: interactive or bulk. Names in the
code call the traffic class `lane`. Each flow has a virtual clock. For each row that leaves the
flow, the clock advances by the row's predicted seconds, or by ten times as much for a bulk row. The
flow with the lowest clock goes next. The clock of a new flow starts at the value that the last
chosen flow had, so that the new flow has no advantage. Within a flow, the row with the earliest
`due` time goes first.
"""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Final

import msgspec

from sluicegate.backends.batching.row import Row

FlowKey = tuple[str, str]
INTERACTIVE: Final = "interactive"
BULK: Final = "bulk"
# The clock of a bulk flow runs this many times as fast as the clock of an interactive flow. So a
# bulk flow gets a tenth of the time that an interactive flow gets.
_BULK_PACE = 10.0


class _Flow(msgspec.Struct, kw_only=True, eq=False):
    clock: float
    pace: float
    heap: list[tuple[float, int, Row]] = []
    waiting: int = 0
    work: float = 0.0


class FairQueue:
    """Queues rows by flow, which is one tenant in one traffic class.

    Rows that were already taken through another index, such as the index by length, are skipped.
    """

    def __init__(self) -> None:
        self._flows: dict[FlowKey, _Flow] = {}
        self._arrivals = count()
        self._now = 0.0
        self.bulk_rows = 0
        """The number of waiting bulk rows."""
        self.bulk_work = 0.0
        """The predicted seconds of the waiting bulk rows."""

    def add(self, row: Row) -> None:
        """Add a row to its flow."""
        flow = self._flows.get(row.flow)
        if flow is None:
            flow = self._flows[row.flow] = _Flow(clock=self._now, pace=_pace(row.flow))
        heapq.heappush(flow.heap, (row.due, next(self._arrivals), row))
        flow.waiting += 1
        flow.work += row.work
        if flow.pace != 1.0:
            self.bulk_rows += 1
            self.bulk_work += row.work

    def lead(self, *, with_bulk: bool = True) -> Row | None:
        """Return the first row of the next batch, without removing it."""
        flows = [flow for flow in self._flows.values() if with_bulk or flow.pace == 1.0]
        if not flows:
            return None
        flow = min(flows, key=_clock) if len(flows) > 1 else flows[0]
        self._now = max(self._now, flow.clock)
        while flow.heap[0][2].is_dequeued:
            heapq.heappop(flow.heap)
        return flow.heap[0][2]

    def remove(self, row: Row, seconds: float) -> None:
        """Remove a row, and charge `seconds` to its flow."""
        flow = self._flows[row.flow]
        flow.clock += seconds * flow.pace
        flow.waiting -= 1
        flow.work -= row.work
        if flow.pace != 1.0:
            self.bulk_rows -= 1
            self.bulk_work = self.bulk_work - row.work if self.bulk_rows else 0.0
        if not flow.waiting:
            # An empty flow is forgotten, even if it has used more than its share. That is fair,
            # because such a flow was alone or submits rarely.
            del self._flows[row.flow]
        elif len(flow.heap) > 2 * flow.waiting + 64:
            flow.heap = [entry for entry in flow.heap if not entry[2].is_dequeued]
            heapq.heapify(flow.heap)

    def waiting(self, key: FlowKey) -> int:
        """Return how many rows of a flow wait."""
        flow = self._flows.get(key)
        return flow.waiting if flow is not None else 0

    def ahead(self, key: FlowKey, work: float) -> float:
        """Return for how long waiting rows delay new rows of a flow, in predicted seconds.

        `work` is the predicted seconds of the new rows. All earlier rows of the flow run before
        them. Until the new rows end, every other flow gets its fair share of the time.
        """
        own = self._flows.get(key)
        pace = own.pace if own is not None else _pace(key)
        until = (work + (own.work if own is not None else 0.0)) * pace
        return sum(min(flow.work, until / flow.pace) for flow in self._flows.values())

    def rows(self) -> Iterator[Row]:
        """Yield all waiting rows."""
        for flow in self._flows.values():
            yield from (row for _, _, row in flow.heap if not row.is_dequeued)

    def clear(self) -> None:
        """Remove all rows."""
        self._flows.clear()
        self.bulk_rows, self.bulk_work = 0, 0.0


def _clock(flow: _Flow) -> float:
    return flow.clock


def _pace(key: FlowKey) -> float:
    return _BULK_PACE if key[0] == BULK else 1.0
