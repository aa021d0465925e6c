"""Makes a failing scenario small: removes faults, operations and requests while it still fails."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from testing.simulation.world.run import Outcome
from testing.simulation.world.scenario import Scenario

T = TypeVar("T")
_NUMBERS = re.compile(r"req_[0-9a-f]+|[0-9.]+")


def kinds_of(outcome: Outcome) -> set[str]:
    """Return the findings without numbers, so that findings of two runs can be compared."""
    return {_NUMBERS.sub("#", finding)[:60] for finding in outcome.findings}


def shrink(scenario: Scenario, run: Callable[[Scenario], Outcome]) -> tuple[Scenario, Outcome]:
    """Return a small scenario that has a finding of the kind that `scenario` has first."""
    smallest = run(scenario)
    wanted = kinds_of(smallest)

    def still_fails(candidate: Scenario) -> bool:
        nonlocal smallest
        outcome = run(candidate)
        if wanted & kinds_of(outcome):
            smallest = outcome
            return True
        return False

    for field in ("operations", "faults", "requests"):
        with_parts = partial(_with_parts, scenario, field)
        parts = _minimal(getattr(scenario, field), lambda some: still_fails(with_parts(some)))  # noqa: B023 - called at once
        scenario = with_parts(parts)
    return scenario, smallest


def _with_parts(scenario: Scenario, field: str, parts: Sequence[T]) -> Scenario:
    return msgspec.structs.replace(scenario, **{field: tuple(parts)})


def _minimal(parts: Sequence[T], still_fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Remove as many parts as possible: first all, then halves, then ever smaller runs of them."""
    size = len(parts)
    while size and parts:
        for start in reversed(range(0, len(parts), size)):
            rest = [*parts[:start], *parts[start + size :]]
            if still_fails(rest):
                parts = rest
        size //= 2
    return parts
