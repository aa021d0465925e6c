"""Writes the tables and fenced blocks of Markdown pages."""

from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTE = "`make reference` generates this page; edit its sources instead. A test compares them.\n"
"""The note at the top of each generated page."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, followed by a blank line."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + "\n"


def cell(text: str) -> str:
    """Return `text` on one line, for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def fence(language: str, text: str, title: str = "") -> str:
    """Return a fenced block, followed by a blank line."""
    name = f'{language} title="{title}"' if title else language
    return f"```{name}\n{text.rstrip()}\n```\n\n"
