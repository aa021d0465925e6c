"""Reads and writes the tables and fenced blocks of Markdown pages."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ROW = re.compile(r"^\|(.+)\|$", re.MULTILINE)
_RULE = re.compile(r"[-| :]+")
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")
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


def rows(name: str) -> list[list[str]]:
    """Return the cells of every row of all tables of a page in `docs`."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    found = [match.group(1) for match in _ROW.finditer(text)]
    return [[each.strip() for each in row.split("|")] for row in found if not _RULE.fullmatch(row)]


def names(text: str) -> list[str]:
    """Return all pieces of text in backticks."""
    return re.findall(r"`([^`]+)`", text)


def from_below(text: str, page: str) -> str:
    """Return text of `page` with links changed to work on a page one folder below."""
    return _LINK.sub(lambda link: f"](../{link[1] or page}{link[2] or ''})", text)
