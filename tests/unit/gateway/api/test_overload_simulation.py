"""Plays the rule of overload on a virtual clock, with requests that pass several iterations."""

import random
from collections import Counter, deque
from collections.abc import Sequence

import pytest

from sluicegate.gateway.api.load_shedding import (
    CALM,
    Iteration,
    Overload,
    after_iteration,
    is_beyond,
    is_too_late,
)
from sluicegate.gateway.types import Criticality

_MOST = 0.5
"""Seconds of an iteration, at the most."""
_ITERATION = 0.0005
"""Seconds of an iteration without requests."""
_REFUSAL = 0.02
"""What a refusal takes of the loop, as a share of what a request takes."""
_PASSES = 4
"""Iterations that a request passes; its work is in the second of them, as a miss's call is."""
_CALM, _SPIKE = 2, 6
"""Seconds of 0.6 of the capacity, and of the spike after them."""


class Loop:
    """An event loop whose requests hold it for `cost` seconds each; counts those in time."""

    def __init__(self, *, cost: float, deadline: float, sheds: bool) -> None:
        self.answered: Counter[int] = Counter()
        """By the second in which they were due: those with their answer in time."""
        self.too_late = 0
        """Requests refused as too late by the worker's part alone."""
        self._cost = cost
        self._deadline = deadline
        self._sheds = sheds
        self._now = 0.0
        self._state: Overload = CALM
        self._passing: deque[list[float]] = deque([] for _ in range(_PASSES))
        """Admitted requests, by when they were due; a list for each iteration passed so far."""

    def play(self, arrivals: list[float], pauses: Sequence[float] = (), pause: float = 0.0) -> None:
        """Let requests arrive at these times, and iterate until the last of them is answered.

        The first iterations after the times `pauses` are longer by `pause`, as by a collection of
        garbage.
        """
        waiting, due_pauses = deque(arrivals), deque(pauses)
        while waiting or any(self._passing):
            if not any(self._passing):
                self._now = max(self._now, waiting[0])
            read: list[float] = []
            while waiting and waiting[0] <= self._now:
                read.append(waiting.popleft())
            is_paused = bool(due_pauses) and due_pauses[0] <= self._now
            if is_paused:
                due_pauses.popleft()
            self._iterate(read, pause if is_paused else 0.0)

    def _iterate(self, read: list[float], pause: float) -> None:
        admitted: list[float] = []
        for due in read:
            if not self._refuses(len(admitted)):
                admitted.append(due)
        ending = self._passing.pop()
        self._passing.appendleft(admitted)
        refused = len(read) - len(admitted)
        work = len(self._passing[1]) + _REFUSAL * refused
        length = _ITERATION + work * self._cost + pause
        self._now += length
        for due in ending:
            self.answered[int(due)] += self._now - due <= self._deadline
        latest = Iteration(
            length=length, requests=len(read), admitted=len(admitted), ended=self._now
        )
        self._state = after_iteration(self._state, latest)

    def _refuses(self, admitted: int) -> bool:
        if not self._sheds or self._now >= self._state.sheds_until:
            return False
        state, allowed = self._state, self._deadline
        if is_too_late(state, allowed):
            self.too_late += 1
            return True
        return is_beyond(state, Criticality.DEFAULT, admitted=admitted, allowed=allowed, most=_MOST)


def play_spike(
    *, cost: float, times: float, deadline: float = 1.0, sheds: bool = True, seed: int = 1
) -> Loop:
    """Offer 0.6 of the capacity, then so many times the capacity."""
    chooser, now, arrivals = random.Random(seed), 0.0, []
    while now < _CALM + _SPIKE:
        now += chooser.expovariate((0.6 if now < _CALM else times) / cost)
        arrivals.append(now)
    loop = Loop(cost=cost, deadline=deadline, sheds=sheds)
    loop.play(arrivals)
    return loop


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("times", [1.5, 6.0, 12.0])
@pytest.mark.parametrize("cost", [0.001, 0.004, 0.016])
def test_a_worker_answers_in_time_what_refusals_leave_it(
    cost: float, times: float, seed: int
) -> None:
    """In every second of a spike but the first two, in which the overload is noticed."""
    loop = play_spike(cost=cost, times=times, seed=seed)

    reached = [loop.answered[second] * cost for second in range(_CALM + 2, _CALM + _SPIKE)]
    left = 1.0 - _REFUSAL * (times - 1.0)
    assert min(reached) >= 0.9 * left


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cost", [0.001, 0.004, 0.016])
def test_the_first_second_of_a_spike_is_not_lost(cost: float, seed: int) -> None:
    loop = play_spike(cost=cost, times=6.0, seed=seed)

    assert loop.answered[_CALM] * cost >= 0.8


@pytest.mark.parametrize("times", [1.5, 6.0, 12.0])
@pytest.mark.parametrize("cost", [0.001, 0.004, 0.016])
def test_callers_with_much_time_get_as_many_answers(cost: float, times: float) -> None:
    """They wait longer, so that those due in one second are answered in another."""
    loop = play_spike(cost=cost, times=times, deadline=10.0)

    reached = sum(loop.answered[second] for second in range(_CALM, _CALM + _SPIKE)) * cost
    left = 1.0 - _REFUSAL * (times - 1.0)
    assert reached >= 0.9 * left * _SPIKE


@pytest.mark.parametrize("cost", [0.001, 0.004, 0.016])
def test_a_worker_that_refuses_nothing_answers_nobody_in_time(cost: float) -> None:
    loop = play_spike(cost=cost, times=6.0, sheds=False)

    assert not any(loop.answered[second] for second in range(_CALM + 2, _CALM + _SPIKE))


@pytest.mark.parametrize("pause", [0.03, 0.05])
@pytest.mark.parametrize("seed", range(3))
def test_pauses_from_time_to_time_refuse_few_whose_time_is_longer(pause: float, seed: int) -> None:
    """Callers with 0.1 s of a worker whose iterations take a tenth of that."""
    cost, seconds = 0.002, 20
    chooser, now, arrivals = random.Random(seed), 0.0, []
    while now < seconds:
        now += chooser.expovariate(0.8 / cost)
        arrivals.append(now)
    loop = Loop(cost=cost, deadline=0.1, sheds=True)

    loop.play(arrivals, [half / 2 for half in range(1, 2 * seconds)], pause)

    assert loop.too_late < 0.01 * len(arrivals)
