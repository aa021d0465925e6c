"""Draws line charts as an SVG page, with nothing but text."""

from collections.abc import Mapping, Sequence
from html import escape

import msgspec

_WIDTH, _HEIGHT = 420, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 40, 48
_COLOURS = ("#1f5fa8", "#c2571a", "#2f7d4f", "#7a4fa0", "#8a6d1f", "#a33a55")
_GRID_LINES = 4


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Holds series over the same `steps`, evenly spaced, from zero upwards."""

    title: str
    across: str
    steps: Sequence[int]
    series: Mapping[str, Sequence[float]]
    unit: str = ""


def draw_page(charts: Sequence[Chart], *, columns: int = 2) -> str:
    """Return an SVG document with the charts in rows of `columns`."""
    lines = -(-len(charts) // columns)
    width, height = columns * _WIDTH, lines * _HEIGHT
    body = "".join(
        f'<g transform="translate({place % columns * _WIDTH},{place // columns * _HEIGHT})">'
        f"{_draw(chart)}</g>"
        for place, chart in enumerate(charts)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11" fill="#222">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>{body}</svg>\n'
    )


def _draw(chart: Chart) -> str:
    top = max((max(values) for values in chart.series.values()), default=0.0) * 1.1 or 1.0
    title, across = escape(chart.title), escape(chart.across)
    parts = [
        f'<text x="{_LEFT}" y="20" font-size="13" font-weight="bold">{title}</text>',
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 12}" text-anchor="middle">{across}</text>',
    ]
    for line in range(_GRID_LINES + 1):
        value = top * line / _GRID_LINES
        y = _y(value, top)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{value:.3g}{escape(chart.unit)}</text>"
        )
    for place, step in enumerate(chart.steps):
        x = _x(place, len(chart.steps))
        y = _HEIGHT - _BOTTOM + 16
        parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{step}</text>')
    for number, (name, values) in enumerate(chart.series.items()):
        parts.append(_draw_series(name, values, top, number))
    return "".join(parts)


def _draw_series(name: str, values: Sequence[float], top: float, number: int) -> str:
    colour = _COLOURS[number % len(_COLOURS)]
    points = [(_x(place, len(values)), _y(value, top)) for place, value in enumerate(values)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points)
    y = _TOP - 4 + 14 * number
    return (
        f'<g fill="{colour}"><polyline points="{path}" fill="none" stroke="{colour}" '
        f'stroke-width="2"/>{dots}'
        f'<text x="{_WIDTH - _RIGHT}" y="{y}" text-anchor="end">{escape(name)}</text></g>'
    )


def _x(place: int, steps: int) -> float:
    inner = _WIDTH - _LEFT - _RIGHT - 24
    return _LEFT + 12 + (inner * place / (steps - 1) if steps > 1 else inner / 2)


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / top
