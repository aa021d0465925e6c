"""Finds the rate that a system can sustain, with the same requests and the same generator."""

from collections.abc import Callable, Sequence

import click
import msgspec

from loadtests.scenarios.catalogue import Phase, Plan
from loadtests.scenarios.samples import Samples, percentile

_CALLERS, _WARM, _WAIT = 32, 2.0, 6.0
_STEPS = tuple(round(0.7 + 0.05 * step, 2) for step in range(9))
_SECONDS = 5.0
_GOOD = 0.99
_QUEUE = 4
"""A median wait of this part of the deadline in the last second is a queue that grows."""


class CapacityStep(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that was tried, and the goodput at it."""

    rate: float
    goodput: float
    is_sustained: bool


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate a second at which 99 % were answered in time, and no queue grew."""

    rate: float
    closed_loop: float
    """What 32 callers reached, each of whom waits for its answer."""
    steps: tuple[CapacityStep, ...]


def find_capacity(send: Callable[[str, Plan], Samples], deadline: float) -> Capacity:
    """Return the capacity: first what callers reach who wait, then constant rates around that."""
    click.echo(f"the capacity first: {_CALLERS} callers who wait for their answers")
    phase = Phase(name="callers who wait", rate=0.0, duration=_WARM + _WAIT)
    samples = send("closed-loop", Plan(phases=(phase,), callers=_CALLERS))
    good = samples.ended[samples.good(deadline)]
    reached = max(1.0, float(((good >= _WARM) & (good < _WARM + _WAIT)).sum()) / _WAIT)
    click.echo(f"they reach {reached:.0f}/s; now constant rates from {_STEPS[0]:.0%} of that on")
    plan = Plan(
        phases=tuple(
            Phase(name=f"{step:.0%}", rate=reached * step, duration=_SECONDS) for step in _STEPS
        )
    )
    samples = send("capacity", plan)
    steps = tuple(
        step_of(samples, phase.rate, begin, end, deadline) for phase, begin, end in plan.spans()
    )
    found = Capacity(rate=highest(steps), closed_loop=reached, steps=steps)
    click.echo(f"the capacity is {found.rate:.0f}/s")
    return found


def highest(steps: Sequence[CapacityStep]) -> float:
    """Return the last rate before the first that was not sustained, or else the best goodput."""
    sustained = 0.0
    for step in steps:
        if not step.is_sustained:
            break
        sustained = step.rate
    return sustained or max(step.goodput for step in steps)


def step_of(
    samples: Samples, rate: float, begin: float, end: float, deadline: float
) -> CapacityStep:
    """Return how a rate went from `begin` to `end`."""
    sent, last = samples.between(begin, end), samples.between(end - 1.0, end)
    good = float(sent.good(deadline).sum())
    waited = percentile(last.latency, 0.5)
    enough = good >= _GOOD * rate * (end - begin) and waited < deadline / _QUEUE
    return CapacityStep(rate=rate, goodput=good / (end - begin), is_sustained=enough)
