"""Prints tables on the command line."""

from collections.abc import Iterable, Sequence

import click

_GAP = "  "


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print headings, and rows below them. A column is as wide as its longest cell."""
    lines = [[heading.upper() for heading in headings], *(list(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo(_GAP.join(cells).rstrip())
