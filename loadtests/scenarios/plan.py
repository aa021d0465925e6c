"""Says when requests are due: phases of constant rates, or callers who wait for answers."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any  # Any: what k6 reads is JSON

import msgspec

_TIME_UNIT = 10
"""Seconds: k6 takes whole numbers of requests per unit of time."""
_GRACE = 5.0


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run: `rate` requests a second for `duration` seconds.

    What is not `judged` counts for no criterion: connections are opened, caches are filled.
    """

    name: str
    rate: float
    duration: float
    is_judged: bool = True
    is_overload: bool = False
    """More than the capacity is asked for: what cannot be done must be refused."""
    new_texts: bool = False
    """Its texts are others than those of the phases before it."""

    @property
    def arrivals(self) -> int:
        """Requests that are due in it."""
        return round(self.rate * self.duration)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The phases of a run, one after another."""

    phases: tuple[Phase, ...]
    callers: int = 0
    """Without a rate: so many callers, each of whom sends again once it is answered."""

    @property
    def duration(self) -> float:
        """Seconds until the last request is due."""
        return sum(phase.duration for phase in self.phases)

    @property
    def arrivals(self) -> int:
        """Requests that are due."""
        return sum(phase.arrivals for phase in self.phases)

    @property
    def peak(self) -> float:
        """The highest rate."""
        return max(phase.rate for phase in self.phases)

    def spans(self) -> Iterator[tuple[Phase, float, float]]:
        """Yield each phase with its begin and its end."""
        ends = accumulate(phase.duration for phase in self.phases)
        for phase, end in zip(self.phases, ends, strict=True):
            yield phase, end - phase.duration, end

    def phase_at(self, seconds: float) -> Phase:
        """Return the phase at a time; the last one lasts."""
        found = (phase for phase, _, end in self.spans() if seconds < end)
        return next(found, self.phases[-1])


def k6_scenario(plan: Plan, *, deadline: float, most_in_flight: int) -> dict[str, Any]:
    """Return the plan as an executor of k6.

    All virtual users, of which each has one request under way, are made before the run.
    """
    common: dict[str, Any] = {"gracefulStop": f"{deadline + _GRACE:g}s"}
    if plan.callers:
        seconds = f"{plan.duration:g}s"
        return common | {"executor": "constant-vus", "vus": plan.callers, "duration": seconds}
    users = min(most_in_flight, int(plan.peak * deadline * 1.2) + 10)
    common |= {"timeUnit": f"{_TIME_UNIT}s", "preAllocatedVUs": users, "maxVUs": users}
    if len(plan.phases) == 1:
        rate, seconds = _per_unit(plan.phases[0].rate), f"{plan.duration:g}s"
        return common | {"executor": "constant-arrival-rate", "rate": rate, "duration": seconds}
    stages = list(_stages(plan.phases))
    first = _per_unit(plan.phases[0].rate)
    return common | {"executor": "ramping-arrival-rate", "startRate": first, "stages": stages}


def _stages(phases: Sequence[Phase]) -> Iterator[dict[str, Any]]:
    for phase in phases:
        yield {"target": _per_unit(phase.rate), "duration": "0s"}
        yield {"target": _per_unit(phase.rate), "duration": f"{phase.duration:g}s"}


def _per_unit(rate: float) -> int:
    return max(1, round(rate * _TIME_UNIT))
