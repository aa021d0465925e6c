"""The rule of overload is a function of iterations; time is in them."""

import msgspec
import pytest

from sluicegate.gateway.api.load_shedding import (
    CALM,
    FEWEST,
    Iteration,
    Overload,
    after_iteration,
    is_beyond,
    is_too_late,
)
from sluicegate.gateway.types import Criticality

_MOST = 0.05


class Worker:
    """Iterates with a load: a request costs `cost` seconds, `rate` of them arrive a second."""

    allowed = 10.0

    def __init__(self, *, cost: float) -> None:
        self.cost = cost
        self.now = 100.0
        self.length = 0.001
        self.state = CALM
        self.refused = 0
        self.admitted = 0

    def iterate(self, arrived: int) -> None:
        admitted = arrived
        if self.now < self.state.sheds_until:
            admitted = 0
            while admitted < arrived and not is_beyond(
                self.state, Criticality.DEFAULT, admitted=admitted, allowed=self.allowed, most=_MOST
            ):
                admitted += 1
        self.pass_iteration(0.001 + admitted * self.cost, arrived, admitted)

    def pass_iteration(self, length: float, requests: int, admitted: int) -> None:
        self.length = length
        self.now += length
        self.refused += requests - admitted
        self.admitted += admitted
        latest = Iteration(length=length, requests=requests, admitted=admitted, ended=self.now)
        self.state = after_iteration(self.state, latest)

    def run(self, *, rate: float, seconds: float) -> float:
        """Return the requests admitted a second."""
        until, before, due = self.now + seconds, self.admitted, 0.0
        started = self.now
        while self.now < until:
            due += rate * self.length
            arrived = int(due)
            due -= arrived
            self.iterate(arrived)
        return (self.admitted - before) / (self.now - started)


@pytest.mark.parametrize("cost", [0.0005, 0.002, 0.01])
@pytest.mark.parametrize("times", [1.5, 6.0, 50.0])
def test_a_worker_admits_what_it_can_do_however_much_is_offered(cost: float, times: float) -> None:
    worker = Worker(cost=cost)

    worker.run(rate=0.6 / cost, seconds=2.0)
    worker.run(rate=times / cost, seconds=2.0)
    reached = worker.run(rate=times / cost, seconds=5.0)

    assert reached * cost > 0.9
    assert worker.length < 1.5 * _MOST


def test_nothing_is_refused_within_the_capacity() -> None:
    worker = Worker(cost=0.001)

    reached = worker.run(rate=900, seconds=10.0)

    assert worker.refused == 0
    assert reached == pytest.approx(900, rel=0.02)


def test_nothing_is_refused_once_an_overload_has_ended() -> None:
    worker = Worker(cost=0.001)
    worker.run(rate=6000, seconds=5.0)
    worker.run(rate=600, seconds=1.0)
    refused = worker.refused

    worker.run(rate=600, seconds=5.0)

    assert worker.refused == refused
    assert worker.now > worker.state.sheds_until


@pytest.mark.parametrize("pause", [0.1, 1.0, 10.0])
def test_one_long_iteration_is_no_overload(pause: float) -> None:
    """A collection of garbage or a reload holds requests up; it takes a second one to refuse."""
    worker = Worker(cost=0.001)
    worker.run(rate=300, seconds=1.0)

    worker.pass_iteration(pause, 30, 30)

    assert worker.now > worker.state.sheds_until


def test_what_waited_for_a_short_pause_is_admitted() -> None:
    worker = Worker(cost=0.001)
    worker.run(rate=600, seconds=1.0)

    worker.pass_iteration(0.06, 10, 10)
    worker.run(rate=600, seconds=2.0)

    assert worker.refused == 0


def test_long_iterations_with_few_requests_are_no_queue() -> None:
    """A machine that is slow in starting serves one request after the other."""
    worker = Worker(cost=0.5)

    for _ in range(20):
        worker.pass_iteration(0.5, FEWEST - 1, FEWEST - 1)

    assert worker.now > worker.state.sheds_until


def test_a_pause_is_not_taken_for_the_cost_of_requests() -> None:
    worker = Worker(cost=0.001)
    worker.run(rate=900, seconds=2.0)
    usual = worker.state.cost

    worker.pass_iteration(10.0, 10, 10)

    assert worker.state.cost <= 4 * usual


def test_sheddable_requests_are_refused_first_and_critical_ones_last() -> None:
    state = msgspec.structs.replace(CALM, cost=0.001)

    most = {
        criticality: next(
            count
            for count in range(1000)
            if is_beyond(state, criticality, admitted=count, allowed=10.0, most=_MOST)
        )
        for criticality in Criticality
    }

    assert most[Criticality.SHEDDABLE] < most[Criticality.DEFAULT] < most[Criticality.CRITICAL]


def test_some_are_always_admitted() -> None:
    """Where other processes have the core, each iteration is long, and must still do something."""
    state = msgspec.structs.replace(CALM, cost=10.0)

    assert not is_beyond(state, Criticality.DEFAULT, admitted=FEWEST - 1, allowed=10.0, most=_MOST)
    assert is_beyond(state, Criticality.DEFAULT, admitted=FEWEST, allowed=10.0, most=_MOST)


def test_a_request_is_refused_that_the_iterations_alone_would_make_late() -> None:
    state = Overload(length=0.04, earlier=(0.04, 0.04, 0.04))

    assert is_too_late(state, 0.1)
    assert not is_too_late(state, 0.3)


@pytest.mark.parametrize("pause", [0.03, 0.06])
def test_a_pause_among_short_iterations_makes_nobody_late_who_has_time_after_it(
    pause: float,
) -> None:
    worker = Worker(cost=0.001)
    for _ in range(10):
        worker.pass_iteration(0.01, 10, 10)

    worker.pass_iteration(pause, 10, 10)

    assert worker.now < worker.state.sheds_until
    assert is_too_late(worker.state, pause + 0.02)
    assert not is_too_late(worker.state, 0.1)


def test_a_second_pause_among_few_iterations_is_expected_to_come_again() -> None:
    worker = Worker(cost=0.001)
    for length in (0.01, 0.01, 0.03, 0.01, 0.03):
        worker.pass_iteration(length, 10, 10)

    assert is_too_late(worker.state, 0.1)


def test_a_caller_with_little_time_is_refused_before_one_with_much() -> None:
    """Neither where it would be answered in time."""
    state = msgspec.structs.replace(CALM, cost=0.001)

    def most(allowed: float) -> int:
        return next(
            count
            for count in range(10_000)
            if is_beyond(state, Criticality.DEFAULT, admitted=count, allowed=allowed, most=1.0)
        )

    assert most(0.1) < most(1.0) < most(10.0)
    assert most(10.0) * state.cost == pytest.approx(0.5, rel=0.01)


def test_callers_who_wait_for_their_answers_and_have_time_are_not_refused() -> None:
    """So many at a time that each iteration is long, and all are answered within a second."""
    worker = Worker(cost=0.0003)

    for _ in range(100):
        admitted = 0
        while admitted < 512 and not is_beyond(
            worker.state, Criticality.DEFAULT, admitted=admitted, allowed=10.0, most=1.0
        ):
            admitted += 1
        worker.pass_iteration(0.001 + admitted * worker.cost, 512, admitted)

    assert worker.now < worker.state.sheds_until
    assert worker.refused == 0
