"""Fits how measured figures grow with a quantity, such as the number of tenants."""

import math
import statistics
from collections.abc import Iterator, Sequence

import msgspec

_CONSTANT, _LINEAR, _WORSE = 0.1, 0.9, 1.1
_LEAST, _LEAST_IDLE = 0.05, 0.5
"""Growth by less than these shares of the first value is ignored, because it is noise."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The figures at one value (`size`) of the growing quantity.

    Mappings have process roles as keys.

    `processor` is in microseconds for each request, and `idle` in microseconds for each second
    without requests. `memory` is in MiB (PSS). `p99` is in milliseconds.
    """

    curve: str
    size: int
    rate: float
    processor: dict[str, float]
    idle: dict[str, float]
    p99: float
    memory: dict[str, float]


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return `k` of the fit `value = c * size ** k`; 0 if there are too few points."""
    logs = [(math.log(size), math.log(value)) for size, value in points if size > 0 and value > 0]
    if len({x for x, _ in logs}) < 2:
        return 0.0
    return statistics.linear_regression([x for x, _ in logs], [y for _, y in logs]).slope


def worst_exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the exponent of all points or of the larger half of the sizes, whichever is higher."""
    return max(exponent(points), exponent(points[len(points) // 2 :]) if len(points) > 3 else 0.0)


def added_exponent(points: Sequence[tuple[float, float]], *, share: float = _LEAST) -> float:
    """Return the exponent of the increase over the value at the smallest size.

    Memory has a large constant part that would hide a steep growth. An increase of less than
    `share` of the first value does not count as growth.
    """
    (first, least), *rest = points
    added = [(size - first, value - least) for size, value in rest if value > least * (1 + share)]
    return worst_exponent(added) if len(added) > 1 else exponent(points)


def word(exponent: float) -> str:
    """Return a word for an exponent, such as `constant`."""
    if exponent < _CONSTANT:
        return "constant"
    if exponent < _LINEAR:
        return "less than linear"
    return "linear" if exponent <= _WORSE else "WORSE THAN LINEAR"


def judge(points: Sequence[Point]) -> Iterator[tuple[str, float, float, float]]:
    """Yield the growth of each figure of a curve.

    Each growth holds the figure's name, its values at the smallest and the largest size, and the
    exponent.
    """
    processor = [(point.size, sum(point.processor.values())) for point in points]
    memory = [(point.size, sum(point.memory.values())) for point in points]
    idle = [(point.size, sum(point.idle.values())) for point in points]
    yield "µs a request", processor[0][1], processor[-1][1], worst_exponent(processor)
    yield "MiB", memory[0][1], memory[-1][1], added_exponent(memory)
    share = added_exponent(idle, share=_LEAST_IDLE)
    yield "idle, µs a second", idle[0][1], idle[-1][1], share
