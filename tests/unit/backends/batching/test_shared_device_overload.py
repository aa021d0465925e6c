"""Several models share a device that is offered many times what it can do; time is simulated.

Requests are of one row and have a second. Queues, meters, admission and the device's shares are the
real ones.
"""

import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from sluicegate.backends.batching.admission import Admission
from sluicegate.backends.batching.device import Device, DeviceShare
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

_DEADLINE = 1.0
_CALM, _SPIKE = 4, 8
"""Seconds of 0.6 of the capacity, and of the spike after them."""
_LARGE = CostModel(base=3e-3, token=0.3e-3, padded=0.05e-3)
_SMALL = CostModel(base=1.5e-3, token=0.05e-3, padded=0.01e-3)


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A model and its share of the requests."""

    cost: CostModel
    weight: float


class Model:
    """A model's queue and admission on the device."""

    def __init__(self, kind: Kind, device: Device, clock: Clock) -> None:
        self.cost = kind.cost
        self.share: DeviceShare = device.share()
        self.queue = RowQueue(limits=BatchLimits(), cost=kind.cost, clock=clock, bulk=device.bulk)
        self.meter = Meter(worker_threads=1, cost=kind.cost, clock=clock)
        self.margin = LatenessMargin()
        self.admission = Admission(
            name="simulated",
            queue=self.queue,
            meter=self.meter,
            margin=self.margin,
            competing=self.share.competing,
        )
        self.share.pending = self.admission.pending


class Simulation:
    """One device of one slot, and the models on it."""

    def __init__(self, kinds: Sequence[Kind], *, slower: float = 1.0) -> None:
        self.clock = Clock()
        self.start = self.clock()
        self.slower = slower
        self.device = Device(slots=1, clock=self.clock)
        self.models = [Model(kind, self.device, self.clock) for kind in kinds]
        self.running: tuple[float, float, Model, DequeuedBatch] | None = None
        self.good: Counter[int] = Counter()
        """Requests answered in time, by the second of their answer; and what was not."""
        self.late: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.due: dict[int, float] = {}
        """When the caller of each row goes."""

    def arrive(
        self, model: Model, length: int, *, waited: float = 0.0, is_known: bool = True
    ) -> None:
        """Admit and queue a request, or refuse it; it `waited` unread, which may be unknown."""
        flow, work = (INTERACTIVE, "tenant"), model.cost.alone(length)
        now = self.clock()
        time_left = _DEADLINE - waited * is_known
        try:
            (reservation,) = model.admission.admit([work], time_left=time_left, flow=flow)
        except Overloaded:
            model.share.arrived(work)
            self.refused[self.second()] += 1
            return
        deadline = now + time_left
        model.admission.take(work, deadline=deadline, flow=flow, reservation=reservation)
        model.share.arrived(work)
        row = Row(
            encoding=Encoding(ids=np.ones(length, dtype=np.int32), type_ids=None, key=b""),
            key=("tenant", "graph", OutputKind.POOLED, b""),
            deadline=deadline,
            span=NO_SPAN,
            settle=lambda _row, _value: None,
            submitted=now,
        )
        row.join(RowWaiter(1, deadline=deadline, on_end=lambda *_: None), 0)
        self.due[id(row)] = now + _DEADLINE - waited
        self.wait(model)
        model.queue.put([row])

    def wait(self, model: Model) -> None:
        """Let the model's thread wait for the slot, if it does not yet."""
        share = model.share
        if not (share.waiting or share.running or share.reserved_until > self.clock()):
            share.clock = max(share.clock, self.device._now)
        share.waiting = 1

    def run_until(self, end: float) -> None:
        """Run the batches that end by then."""
        self.begin()
        while self.running is not None and self.running[0] <= end:
            self.end_batch()
            self.begin()
        self.clock.advance(max(0.0, end - self.clock()))

    def begin(self) -> None:
        """Give the slot, if it is free, to the model that is next."""
        while self.running is None and any(model.queue.rows for model in self.models):
            for model in self.models:
                model.share.waiting = int(model.queue.rows > 0)
                if not model.queue.rows:
                    model.share.reserved_until = -1.0
            share = self.device._next()
            model = next(each for each in self.models if each.share is share)
            self.device.enter(share)
            batch = model.queue.take()
            assert batch is not None
            started = model.meter.begin(batch.work, waiting_since=batch.waiting_since)
            self.late[self.second()] += len(batch.dropped)
            took = 0.0
            if batch.rows:
                lengths = [row.length for row in batch.rows]
                took = self.slower * model.cost.seconds(
                    rows=len(lengths), longest=max(lengths), tokens=sum(lengths)
                )
            self.running = started + took, started, model, batch

    def end_batch(self) -> None:
        """Let time pass until the batch that runs has ended."""
        assert self.running is not None
        end, started, model, batch = self.running
        self.running = None
        self.clock.advance(max(0.0, end - self.clock()))
        model.meter.stop(batch.work)
        model.admission.learn(batch, started=started)
        for row in batch.rows:
            counts = self.good if self.clock() <= self.due[id(row)] else self.late
            counts[self.second()] += 1
        used = batch.seconds * model.queue.slowness
        self.device.leave(model.share, used, more=model.queue.rows > 0)

    def second(self) -> int:
        """Return the second that this is of the simulation."""
        return int(self.clock() - self.start)


def spike(
    kinds: Sequence[Kind],
    *,
    times: float,
    seed: int = 1,
    slower: float = 1.0,
    unread: Sequence[tuple[float, float]] = (),
    is_known: bool = True,
) -> tuple[Simulation, float]:
    """Offer 0.6 of the capacity, then so many times it; return what became of it, and the capacity.

    The capacity is what is answered when rows run in batches of four, in requests a second.
    What comes between the times of a pair of `unread` is read at the second of them.
    """
    chooser = random.Random(seed)
    weights = [kind.weight for kind in kinds]
    mean = sum(k.weight * (k.cost.alone(45) + k.cost.base / 4) for k in kinds) / sum(weights)
    able = 1.0 / (mean * slower)
    simulation = Simulation(kinds, slower=slower)
    at = 0.0
    while at < _CALM + _SPIKE:
        at += chooser.expovariate(able * (0.6 if at < _CALM else times))
        read = next((end for begin, end in unread if begin <= at < end), at)
        simulation.run_until(simulation.start + read)
        length = min(128, max(6, round(chooser.lognormvariate(3.6, 0.6))))
        model = chooser.choices(simulation.models, weights)[0]
        simulation.arrive(model, length, waited=read - at, is_known=is_known)
    simulation.run_until(simulation.start + at + 5.0)
    return simulation, able


_KINDS = {
    "one model": [Kind(cost=_LARGE, weight=1)],
    "a large and a small one": [Kind(cost=_LARGE, weight=3), Kind(cost=_SMALL, weight=1)],
    "three large ones and a small one": [
        *[Kind(cost=_LARGE, weight=1)] * 3,
        Kind(cost=_SMALL, weight=2),
    ],
}


@pytest.mark.parametrize("slower", [1.0, 2.0])
@pytest.mark.parametrize("times", [2.0, 6.0])
@pytest.mark.parametrize("name", _KINDS)
def test_what_is_admitted_is_in_time_however_many_models_share_the_device(
    name: str, times: float, slower: float
) -> None:
    """`slower` is how many times longer batches take than their cost models say."""
    simulation, able = spike(_KINDS[name], times=times, slower=slower)

    seconds = range(_CALM + 1, _CALM + _SPIKE)
    good = sum(simulation.good[second] for second in seconds)
    late = sum(simulation.late[second] for second in seconds)
    assert good >= 0.95 * able * len(seconds)
    assert late <= 0.1 * good


@pytest.mark.parametrize("name", _KINDS)
def test_an_overload_that_begins_is_noticed_by_what_the_other_models_have_admitted(
    name: str,
) -> None:
    """The pace of late does not know of it yet: each model had the device to itself."""
    simulation, able = spike(_KINDS[name], times=6.0)

    assert simulation.good[_CALM] + simulation.good[_CALM + 1] >= 1.8 * able
    assert simulation.late[_CALM] + simulation.late[_CALM + 1] <= 0.3 * able
    assert not any(simulation.refused[second] for second in range(_CALM))


@pytest.mark.parametrize("name", _KINDS)
def test_what_waited_unread_is_late_where_nobody_knows_of_it(name: str) -> None:
    """The event loop does not read for 0.3 s of each second: others have its core."""
    unread = [(second + 0.3, second + 0.6) for second in range(_CALM, _CALM + _SPIKE)]

    known, able = spike(_KINDS[name], times=6.0, unread=unread)
    unknown, _ = spike(_KINDS[name], times=6.0, unread=unread, is_known=False)

    seconds = range(_CALM + 1, _CALM + _SPIKE)
    assert sum(known.good[second] for second in seconds) >= 1.1 * able * len(seconds)
    assert unknown.good.total() <= 0.95 * known.good.total()
    assert known.late.total() <= 0.75 * unknown.late.total()
