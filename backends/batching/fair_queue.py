"""Chooses the row that leads the next batch: weighted fair queueing of flows.

A flow is a traffic class (`lane`: interactive or bulk) and a scope (tenant). Each has a virtual
clock that runs with the predicted seconds of its rows, ten times as fast for bulk; the flow whose
clock is furthest behind goes next. A flow that was empty starts at the others' time: absence earns
no credit. Within a flow the row that is `due` first leads: by its first caller's deadline.
"""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Final

import msgspec

from backends.batching.row import Row

FlowKey = tuple[str, str]
INTERACTIVE: Final = "interactive"
BULK: Final = "bulk"
# How many times faster the clock of a bulk flow runs: the share it gets beside interactive ones.
_BULK_PACE = 10.0


class _Flow(msgspec.Struct, kw_only=True, eq=False):
    clock: float
    pace: float
    heap: list[tuple[float, int, Row]] = []
    waiting: int = 0
    work: float = 0.0


class FairQueue:
    """Queues rows by flow. Rows that were dequeued elsewhere are skipped here."""

    def __init__(self) -> None:
        self._flows: dict[FlowKey, _Flow] = {}
        self._arrivals = count()
        self._now = 0.0
        self.bulk_rows = 0
        """How many of the rows that wait are bulk work."""
        self.bulk_work = 0.0
        """What these will take, in seconds."""

    def add(self, row: Row) -> None:
        """Let a row wait in its flow."""
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
        """Return the row that leads the next batch; it stays until `remove`."""
        flows = [flow for flow in self._flows.values() if with_bulk or flow.pace == 1.0]
        if not flows:
            return None
        flow = min(flows, key=_clock) if len(flows) > 1 else flows[0]
        self._now = max(self._now, flow.clock)
        while flow.heap[0][2].is_dequeued:
            heapq.heappop(flow.heap)
        return flow.heap[0][2]

    def remove(self, row: Row, seconds: float) -> None:
        """Remove a row, and charge its flow the time spent on it."""
        flow = self._flows[row.flow]
        flow.clock += seconds * flow.pace
        flow.waiting -= 1
        flow.work -= row.work
        if flow.pace != 1.0:
            self.bulk_rows -= 1
            self.bulk_work = self.bulk_work - row.work if self.bulk_rows else 0.0
        if not flow.waiting:
            # Its use beyond its share is forgotten with it: it was alone or submits seldom.
            del self._flows[row.flow]
        elif len(flow.heap) > 2 * flow.waiting + 64:
            flow.heap = [entry for entry in flow.heap if not entry[2].is_dequeued]
            heapq.heapify(flow.heap)

    def waiting(self, key: FlowKey) -> int:
        """Return how many rows of a flow wait."""
        flow = self._flows.get(key)
        return flow.waiting if flow is not None else 0

    def ahead(self, key: FlowKey, work: float) -> float:
        """Return the work that runs before `work` more of a flow: its own, and fair shares."""
        own = self._flows.get(key)
        pace = own.pace if own is not None else _pace(key)
        until = (work + (own.work if own is not None else 0.0)) * pace
        return sum(min(flow.work, until / flow.pace) for flow in self._flows.values())

    def rows(self) -> Iterator[Row]:
        """Return all rows that wait."""
        for flow in self._flows.values():
            yield from (row for _, _, row in flow.heap if not row.is_dequeued)

    def clear(self) -> None:
        """Forget every row."""
        self._flows.clear()
        self.bulk_rows, self.bulk_work = 0, 0.0


def _clock(flow: _Flow) -> float:
    return flow.clock


def _pace(key: FlowKey) -> float:
    return _BULK_PACE if key[0] == BULK else 1.0
