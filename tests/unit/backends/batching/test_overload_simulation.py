"""Twice the work that can be done, with a simulated clock and device: requests end or are refused.

A request has several items, is of use only as a whole, and has three times the time that it takes
alone. Queue, policy, meter and admission are the real ones.
"""

import heapq
import math
import random
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from sluicegate.backends.batching.admission import Admission, QueueReservation
from sluicegate.backends.batching.fair_queue import INTERACTIVE
from sluicegate.backends.batching.lateness_margin import LatenessMargin
from sluicegate.backends.batching.meter import Meter
from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.batching.queue import DequeuedBatch, RowQueue
from sluicegate.backends.batching.row import Row, RowWaiter
from sluicegate.backends.errors import Overloaded
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.telemetry.spans import NO_SPAN
from sluicegate.backends.types import Encoding, OutputKind
from tests.support.clock import Clock

pytestmark = pytest.mark.anyio
# As measured for a six-layer encoder whose linear layers leave padding out.
COST = CostModel(base=0.8e-3, token=0.11e-3, padded=0.04e-3, square=50e-9)
FLOW = (INTERACTIVE, "tenant")
# Estimates by bytes are off by so much, as a standard deviation of their logarithm.
OFF = 0.15
WORKER_THREADS = 1


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of so many items, each of which brings `rows` in so many `steps`, one by one."""

    items: int
    rows: int = 1
    steps: int = 1
    words: int = 60


class Request:
    """A request under way: the rows of each item's steps that are still to come."""

    def __init__(self, kind: Kind, chooser: random.Random) -> None:
        lengths = [
            [
                [max(8, round(chooser.gauss(kind.words * 1.3, 10))) for _ in range(kind.rows)]
                for _ in range(kind.steps)
            ]
            for _ in range(kind.items)
        ]
        self.works = [sum(COST.alone(n) for step in item for n in step) for item in lengths]
        self.estimates = [work * chooser.lognormvariate(0.0, OFF) for work in self.works]
        self.steps = lengths
        self.deadline = math.inf
        self.reservations: list[QueueReservation] = []
        self.waits: list[int] = []
        self.open = kind.items
        self.rows: list[Row] = []


class Simulation:
    """One backend, and requests that come at their times or as soon as others have ended."""

    def __init__(self, kind: Kind, *, seed: int) -> None:
        self.clock = Clock()
        self.kind = kind
        self.chooser = random.Random(seed)
        self.queue = RowQueue(limits=BatchLimits(), cost=COST, clock=self.clock)
        self.meter = Meter(worker_threads=WORKER_THREADS, cost=COST, clock=self.clock)
        self.margin = LatenessMargin()
        self.admission = Admission(
            name="simulated", queue=self.queue, meter=self.meter, margin=self.margin
        )
        self.running: list[tuple[float, int, float, DequeuedBatch]] = []
        self.owners: dict[int, tuple[Request, int]] = {}
        self.waiters: dict[int, RowWaiter] = {}
        self.finished = self.refused = self.failed = 0
        self.retry_afters: list[float] = []

    def begin(self, patience: float) -> Request | None:
        """Let a request in, or refuse it as a whole."""
        request = Request(self.kind, self.chooser)
        request.deadline = self.clock() + patience
        try:
            request.reservations = self.admission.admit(
                request.estimates, time_left=patience, flow=FLOW
            )
        except Overloaded as error:
            self.refused += 1
            self.retry_afters.append(error.retry_after)
            return None
        request.waits = [0] * self.kind.items
        for item in range(self.kind.items):
            if not self.ask(request, item):
                return None
        return request

    def ask(self, request: Request, item: int) -> bool:
        """Queue the rows of an item's next step."""
        lengths = request.steps[item].pop(0)
        rows = [self.row(request, item, length) for length in lengths]
        work = sum(COST.alone(length) for length in lengths)
        try:
            self.admission.take(
                work,
                deadline=request.deadline,
                flow=FLOW,
                reservation=request.reservations[item],
            )
        except Overloaded:
            self.fail(request)
            return False
        request.waits[item] = len(rows)
        request.rows += rows
        self.queue.put(rows)
        return True

    def row(self, request: Request, item: int, length: int) -> Row:
        row = Row(
            encoding=Encoding(ids=np.ones(length, dtype=np.int32), type_ids=None, key=b""),
            key=("tenant", "graph", OutputKind.POOLED, b""),
            deadline=request.deadline,
            span=NO_SPAN,
            settle=lambda _row, _value: None,
            request=request.reservations[item].request,
        )
        waiter = RowWaiter(1, deadline=row.deadline, on_end=lambda *_: None)
        row.join(waiter, 0)
        self.owners[id(row)] = (request, item)
        self.waiters[id(row)] = waiter
        return row

    def fail(self, request: Request) -> None:
        """End a request without an answer: what it has queued is withdrawn."""
        if request.open:
            request.open = 0
            self.failed += 1
            for row in request.rows:
                self.waiters[id(row)].leave()
            self.queue.withdraw(request.rows)
            for reservation in request.reservations:
                reservation.release()

    def fill(self) -> None:
        """Let the worker threads take what waits."""
        while len(self.running) < WORKER_THREADS and self.queue.rows:
            taken = self.queue.take()
            assert taken is not None
            for row in taken.dropped:
                self.fail(self.owners[id(row)][0])
            self.meter.begin(taken.work, waiting_since=taken.waiting_since)
            lengths = [row.length for row in taken.rows]
            took = 0.0
            if lengths:
                rows = len(lengths)
                took = COST.seconds(rows=rows, longest=max(lengths), tokens=sum(lengths))
            now = self.clock()
            heapq.heappush(self.running, (now + took, id(taken), now, taken))

    def run_until(self, end: float) -> None:
        """Run what ends by then."""
        self.fill()
        while self.running and self.running[0][0] <= end:
            self.end_batch()
            self.fill()

    def end_batch(self) -> None:
        """Let time pass until a batch ends."""
        end, _, started, taken = heapq.heappop(self.running)
        self.clock.advance(max(0.0, end - self.clock()))
        self.meter.stop(taken.work)
        self.margin.learn(taken, self.clock())
        if taken.rows:
            self.meter.end(
                release=taken.release,
                predicted=taken.seconds,
                work=taken.work,
                took=self.clock() - started,
                has_waiting=taken.more,
                has_reserved=self.admission.reserved > 0.0,
            )
            self.queue.slowness = self.meter.slowness
        for row in taken.rows:
            request, item = self.owners.pop(id(row))
            if request.open and self.clock() > request.deadline:
                self.fail(request)
            elif request.open:
                request.waits[item] -= 1
                if not request.waits[item]:
                    self.step(request, item)

    def step(self, request: Request, item: int) -> None:
        if request.steps[item]:
            self.ask(request, item)
            return
        request.reservations[item].release()
        request.open -= 1
        self.finished += not request.open


def capacity(kind: Kind) -> float:
    """Return the requests a second of a backend that always has some more, and all time."""
    simulation = Simulation(kind, seed=1)
    count = max(12, 600 // (kind.items * kind.rows * kind.steps))
    for _ in range(3):
        simulation.begin(math.inf)
    started = 3
    while simulation.finished < count:
        simulation.fill()
        before = simulation.finished
        simulation.end_batch()
        for _ in range(simulation.finished - before):
            simulation.begin(math.inf)
            started += 1
    return simulation.finished / (simulation.clock() - Clock()())


def overload(kind: Kind, *, times: float, seed: int = 2) -> tuple[Simulation, float]:
    """Send `times` as many requests as can be answered; return what became of them, and how long.

    Arrivals are spaced at random, as those of callers who know nothing of each other.
    """
    able = capacity(kind)
    alone = sum(Request(kind, random.Random(3)).works)
    simulation = Simulation(kind, seed=seed)
    start = simulation.clock()
    count = round(times * (160 if kind.items * kind.rows < 100 else 50))
    arrivals = _arrivals(times * able, count=count, seed=seed)
    for at in arrivals:
        simulation.run_until(start + at)
        simulation.clock.advance(max(0.0, start + at - simulation.clock()))
        simulation.begin(3.0 * alone + 0.05)
    simulation.run_until(math.inf)
    return simulation, simulation.finished / (simulation.clock() - start) / able


def _arrivals(rate: float, *, count: int, seed: int) -> Iterator[float]:
    chooser = random.Random(seed)
    at = 0.0
    for _ in range(count):
        at += chooser.expovariate(rate)
        yield at


KINDS = {
    "one item": Kind(items=1),
    "16 items": Kind(items=16),
    "256 items": Kind(items=256),
    "zero-shot of 10 labels": Kind(items=1, rows=10),
    "16 zero-shot items": Kind(items=16, rows=10),
    "long documents": Kind(items=4, rows=8, words=190),
    "tournaments": Kind(items=1, rows=8, steps=5),
}


@pytest.mark.parametrize("name", KINDS)
async def test_twice_the_work_leaves_nine_tenths_of_the_capacity(name: str) -> None:
    simulation, share = overload(KINDS[name], times=2.0)

    assert share >= 0.9
    assert simulation.failed <= 0.03 * (simulation.finished + simulation.failed)
    assert simulation.refused > 0
    assert all(math.isfinite(after) and after > 0 for after in simulation.retry_afters)
