"""Takes variants in turns, so that a machine whose speed drifts changes all of them alike."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

_Name = TypeVar("_Name")
_Run = TypeVar("_Run")


def in_turns(
    variants: Mapping[_Name, Callable[[], _Run]],
    rounds: int,
    *,
    rest: Callable[[], None] = lambda: None,
) -> dict[_Name, list[_Run]]:
    """Run each variant once a round, and `rest` after each; return the runs, round by round."""
    runs: dict[_Name, list[_Run]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            runs[name].append(run())
            rest()
    return runs


def middle(runs: Sequence[_Run], by: Callable[[_Run], float]) -> _Run:
    """Return the median run."""
    return sorted(runs, key=by)[len(runs) // 2]


def paired(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the median of `before / after`, round by round: a busy machine slows both down."""
    return median(one / other for one, other in zip(before, after, strict=True))
