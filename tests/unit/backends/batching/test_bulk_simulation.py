"""Interactive rows beside a bulk queue that never ends, with a simulated clock and device.

Queue and policy are the real ones; one thread runs batches, and rows arrive at random.
"""

import random

import numpy as np
import pytest

from sluicegate.backends.batching.bulk_pause import BulkPause
from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.batching.queue import RowQueue
from sluicegate.backends.batching.row import Row, RowWaiter
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.telemetry.spans import NO_SPAN
from sluicegate.backends.types import Encoding, OutputKind
from tests.support.clock import Clock

COSTS = {
    "six layers": CostModel(base=0.8e-3, token=0.11e-3, padded=0.04e-3, square=50e-9),
    "a device that batches": CostModel(base=5e-3, token=1e-5),
    "paced": CostModel(base=2e-3, padded=2e-5),
}
_BULK_WAITING = 32
_ARRIVALS = 2000


class BulkSimulation:
    """A device with interactive arrivals at `rate`, and bulk rows beside them."""

    def __init__(self, cost: CostModel, *, rate: float) -> None:
        self._chance = random.Random(1)
        self._clock = Clock()
        self._bulk = BulkPause()
        self._queue = RowQueue(limits=BatchLimits(), cost=cost, clock=self._clock, bulk=self._bulk)
        self._rate = rate
        self._arrived: dict[int, float] = {}
        self._serial = 0

    def row(self, lane: str) -> Row:
        self._serial += 1
        length = round(min(256.0, max(4.0, self._chance.lognormvariate(3.0, 0.6))))
        ids = np.full(length, self._serial, dtype=np.int32)
        row = Row(
            encoding=Encoding(ids=ids, type_ids=None, key=ids.tobytes()),
            key=("tenant", "graph", OutputKind.POOLED, ids.tobytes()),
            deadline=self._clock() + 1e6,
            span=NO_SPAN,
            settle=lambda _row, _value: None,
            lane=lane,
        )
        row.join(RowWaiter(1, deadline=row.deadline, on_end=lambda *_: None), 0)
        return row

    def p95(self, *, bulk: int) -> tuple[float, int]:
        """Return the p95 of interactive rows, and how many bulk rows ran beside them."""
        clock, latencies, bulk_rows = self._clock, list[float](), 0
        due = clock() + self._chance.expovariate(self._rate)
        self._queue.put([self.row("bulk") for _ in range(bulk)])
        while len(latencies) < _ARRIVALS:
            batch = self._queue.take()
            if batch is None:
                # What pauses goes on then, if nothing comes before.
                next_one = max(self._bulk.until, clock()) if self._queue.rows else due
                clock.advance(min(due, next_one) - clock() + 1e-9)
            ends = clock() + (batch.seconds if batch else 0.0)
            while due <= ends:
                row = self.row("interactive")
                self._arrived[id(row)] = due
                self._queue.put([row])
                due += self._chance.expovariate(self._rate)
            if batch is None:
                continue
            clock.advance(ends - clock())
            for row in batch.rows:
                if row.lane == "interactive":
                    latencies.append(ends - self._arrived.pop(id(row)))
                else:
                    bulk_rows += 1
                    self._queue.put([self.row("bulk")])
        return sorted(latencies)[int(len(latencies) * 0.95)], bulk_rows


@pytest.mark.parametrize("rate", [5.0, 20.0])
@pytest.mark.parametrize("name", COSTS)
def test_p95_of_interactive_rows_is_nearly_that_alone(name: str, rate: float) -> None:
    alone, _ = BulkSimulation(COSTS[name], rate=rate).p95(bulk=0)

    beside, bulk_rows = BulkSimulation(COSTS[name], rate=rate).p95(bulk=_BULK_WAITING)

    assert beside <= 1.2 * alone
    assert bulk_rows > _ARRIVALS / rate
