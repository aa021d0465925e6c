"""Runs variants in turns, so that changes of the machine's speed affect all of them alike."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

_Name = TypeVar("_Name")
_Run = TypeVar("_Run")


def in_turns(variants: Mapping[_Name, Callable[[], _Run]], rounds: int) -> dict[_Name, list[_Run]]:
    """Run each variant once in each round; return each variant's runs."""
    runs: dict[_Name, list[_Run]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            runs[name].append(run())
    return runs


def middle(runs: Sequence[_Run], by: Callable[[_Run], float]) -> _Run:
    """Return the run with the median of `by`."""
    return sorted(runs, key=by)[len(runs) // 2]


def paired(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the median of the ratios `before / after` of all rounds.

    Other work slows both runs of a round alike, so it hardly changes their ratio.
    """
    return median(one / other for one, other in zip(before, after, strict=True))
