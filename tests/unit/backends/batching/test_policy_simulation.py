"""The policy on seeded arrivals, with a simulated clock and device: what it is for, in numbers."""

import heapq
import math
import random

import msgspec
import numpy as np
import pytest

from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.batching.queue import RowQueue
from sluicegate.backends.batching.row import Row, RowWaiter
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.telemetry.spans import NO_SPAN
from sluicegate.backends.types import Encoding, OutputKind
from tests.support.clock import Clock

pytestmark = pytest.mark.anyio
# As measured for a six-layer encoder whose linear layers leave padding out.
COST = CostModel(base=0.8e-3, token=0.11e-3, padded=0.04e-3, square=50e-9)
ROWS = 1500


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    length: int
    patience: float = 30.0
    scope: str = "tenant"


class Run(msgspec.Struct, kw_only=True):
    """What a simulation saw. Waits are by length; `finished` is before the deadline."""

    took: float = 0.0
    tokens: int = 0
    padded: int = 0
    finished: int = 0
    late: int = 0
    dropped: int = 0
    waits: list[tuple[int, float]] = []
    done: dict[str, int] = {}


def lengths(count: int, seed: int) -> list[int]:
    """Return lengths like those of film reviews: median 11, at most 52 tokens."""
    chooser = random.Random(seed)
    return [min(52, max(4, round(chooser.lognormvariate(2.2, 0.6)) + 2)) for _ in range(count)]


def poisson(rate: float, found: list[int], seed: int, **changes: object) -> list[Arrival]:
    chooser = random.Random(seed)
    at, arrivals = 0.0, []
    for length in found:
        at += chooser.expovariate(rate)
        arrivals.append(Arrival(at=at, length=length, **changes))  # type: ignore[arg-type]
    return arrivals


def make_row(arrival: Arrival, now: float) -> tuple[Row, RowWaiter]:
    ids = np.ones(arrival.length, dtype=np.int32)
    row = Row(
        encoding=Encoding(ids=ids, type_ids=None, key=b""),
        key=(arrival.scope, "graph", OutputKind.POOLED, b""),
        deadline=now + arrival.patience,
        span=NO_SPAN,
        settle=lambda _row, _value: None,
    )
    waiter = RowWaiter(1, deadline=row.deadline, on_end=lambda *_: None)
    row.join(waiter, 0)
    return row, waiter


class _Simulation:
    """A queue, worker threads, and a clock that jumps to the next event."""

    def __init__(self, arrivals: list[Arrival], *, connections: int | None) -> None:
        self.clock, self.run = Clock(), Run()
        self.start = self.clock()
        self.queue = RowQueue(limits=BatchLimits(), cost=COST, clock=self.clock)
        self.pending = list(reversed(arrivals))
        self.connections = connections
        self.free = 2
        self.began: dict[int, float] = {}
        self.waiters: list[RowWaiter] = []
        self.running: list[tuple[float, int, list[Row]]] = []

    def put(self) -> None:
        row, waiter = make_row(self.pending.pop(), self.clock())
        self.waiters.append(waiter)
        self.began[id(row)] = self.clock()
        self.queue.put([row])

    def step(self) -> bool:
        """Fill the worker threads, then let time pass until a row arrives or a batch ends."""
        while self.free and self.queue.rows:
            self.take()
        opened = self.pending and self.connections is None
        arrival = self.start + self.pending[-1].at if opened else math.inf
        end = self.running[0][0] if self.running else math.inf
        if min(arrival, end) == math.inf:
            return False
        self.clock.advance(max(0.0, min(arrival, end) - self.clock()))
        if arrival <= end:
            self.put()
        else:
            self.finish()
        return True

    def take(self) -> None:
        taken = self.queue.take()
        assert taken is not None
        self.run.dropped += len(taken.dropped)
        if not taken.rows:
            return
        longest = max(row.length for row in taken.rows)
        tokens = sum(row.length for row in taken.rows)
        took = COST.seconds(rows=len(taken.rows), longest=longest, tokens=tokens)
        heapq.heappush(self.running, (self.clock() + took, id(taken), taken.rows))
        self.run.tokens += tokens
        self.run.padded += longest * len(taken.rows)
        self.free -= 1

    def finish(self) -> None:
        _, _, rows = heapq.heappop(self.running)
        self.free += 1
        for row in rows:
            self.run.waits.append((row.length, self.clock() - self.began[id(row)]))
            self.run.done[row.key[0]] = self.run.done.get(row.key[0], 0) + 1
            on_time = self.clock() <= row.deadline
            self.run.finished += on_time
            self.run.late += not on_time
            if self.connections is not None and self.pending:
                self.put()


def simulate(arrivals: list[Arrival], *, connections: int | None = None) -> Run:
    """Run arrivals through the queue; with `connections`, each arrives when one is answered."""
    simulation = _Simulation(arrivals, connections=connections)
    for _ in range(connections or 0):
        simulation.put()
    while simulation.step():
        pass
    simulation.run.took = simulation.clock() - simulation.start
    return simulation.run


def sorted_batches(found: list[int]) -> float:
    """Return the time of the bare model: all rows known, sorted, eight at a time, two threads."""
    ordered = sorted(found)
    batches = [ordered[at : at + 8] for at in range(0, len(ordered), 8)]
    return sum(COST.seconds(rows=len(b), longest=b[-1], tokens=sum(b)) for b in batches) / 2


def percentile(waits: list[float], share: float) -> float:
    return sorted(waits)[int(share * len(waits))]


async def test_thirty_two_connections_run_at_nearly_the_speed_of_sorted_batches() -> None:
    found = lengths(ROWS, seed=1)

    run = simulate([Arrival(at=0.0, length=n) for n in found], connections=32)

    assert sorted_batches(found) / run.took >= 0.93
    padding = COST.padded * (run.padded - run.tokens)
    assert padding / (COST.token * run.tokens + COST.padded * run.padded) <= 0.10


async def test_short_rows_hardly_notice_documents_among_them() -> None:
    """Five in a hundred are 256 tokens long; worker threads are 60 % busy."""
    chooser = random.Random(3)
    found = [256 if chooser.random() < 0.05 else n for n in lengths(ROWS, seed=3)]
    seconds = sum(COST.seconds(rows=1, longest=n, tokens=n) for n in found) / ROWS
    arrivals = poisson(0.6 * 2 / seconds, found, seed=4)

    run = simulate(arrivals)

    short = [wait for length, wait in run.waits if length < 256]
    assert percentile(short, 0.95) < 3 * COST.seconds(rows=1, longest=256, tokens=256)


async def test_nothing_runs_that_is_already_late_and_nothing_is_forgotten() -> None:
    found = lengths(ROWS, seed=5)
    rate = 2 * 2 / (sum(map(COST.alone, found)) / ROWS)

    run = simulate(poisson(rate, found, seed=6, patience=0.1))

    assert run.finished + run.late + run.dropped == ROWS
    assert run.late <= 0.02 * ROWS
    assert run.finished >= 0.35 * ROWS


async def test_a_tenant_that_floods_leaves_the_other_its_share() -> None:
    flood = [Arrival(at=0.0, length=n, scope="flood") for n in lengths(ROWS, seed=7)]
    calm = poisson(20.0, lengths(60, seed=8), seed=8, scope="calm")
    both = sorted([*flood, *calm], key=lambda arrival: arrival.at)

    run = simulate(both)

    assert run.done == {"flood": ROWS, "calm": 60}
    # The 1,500 rows of the flood take 1.6 s; each row of the calm one waits for a batch or two.
    position = [wait for _, wait in run.waits]
    assert percentile(position, 0.05) < 0.2


@pytest.mark.parametrize("seed", range(3))
async def test_every_row_leaves_once(seed: int) -> None:
    found = lengths(300, seed=seed)

    run = simulate(poisson(400.0, found, seed=seed))

    assert sorted(length for length, _ in run.waits) == sorted(found)
