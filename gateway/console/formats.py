"""Formats numbers for the console's pages, in a short form and with units."""

from collections.abc import Callable

_STEPS = ((1e9, "G"), (1e6, "M"), (1e4, "k"))
_TIMES = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "µs", 1e6))
_BYTES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SHORTEST, _THOUSAND = 1e-6, 1000
NOTHING = "-"
"""The text for an unknown number."""


def count(value: float | None) -> str:
    """Format a count, such as `1,234`, `12.3k` or `4.56M`."""
    if value is None:
        return NOTHING
    for step, unit in _STEPS:
        if abs(value) >= step:
            return f"{value / (1e3 if unit == 'k' else step):.3g}{unit}"
    return f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Format a number of events per second. A number below 10 gets one decimal place."""
    return NOTHING if value is None else f"{value:.1f}" if 0 < value < 10 else count(value)  # noqa: PLR2004 - where a decimal matters


def seconds(value: float | None) -> str:
    """Format a duration in a suitable unit, such as `1.25 s`, `12.3 ms` or `80 µs`."""
    if value is None:
        return NOTHING
    if value < _SHORTEST:
        return "< 1 µs" if value else "0"
    rounded = float(f"{value:.3g}")  # rounded before the unit is chosen: 0.9996 ms becomes 1 ms
    _, unit, factor = next(each for each in _TIMES if rounded >= each[0])
    number = rounded * factor
    return f"{number:.3g} {unit}" if number < _THOUSAND else f"{number:,.0f} {unit}"


def percent(value: float | None) -> str:
    """Format a fraction of 1 as a percentage, such as `12.5 %` or `100 %`."""
    return NOTHING if value is None else f"{value * 100:.1f}".removesuffix(".0") + " %"


def size(value: float | None) -> str:
    """Format a number of bytes, such as `1.5 GiB`."""
    if value is None:
        return NOTHING
    for step, unit in _BYTES:
        if value >= step:
            return f"{value / step:.1f} {unit}"
    return f"{value:.0f} B"


FILTERS: dict[str, Callable[[float | None], str]] = {
    "count": count,
    "rate": rate,
    "seconds": seconds,
    "percent": percent,
    "size": size,
}
