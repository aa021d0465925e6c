"""Reads the tables of a Markdown page."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ROW = re.compile(r"^\|(.+)\|$", re.MULTILINE)
_RULE = re.compile(r"[-| :]+")


def page(name: str) -> str:
    """Return the text of a page of the project."""
    return (ROOT / name).read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """Return the cells of every row of every table, rules left out."""
    found = [match.group(1) for match in _ROW.finditer(text)]
    return [[cell.strip() for cell in row.split("|")] for row in found if not _RULE.fullmatch(row)]


def names(cell: str) -> list[str]:
    """Return what stands in backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def first_cells(text: str) -> set[str]:
    """Return every name that some row begins with."""
    return {name for row in rows(text) for name in names(row[0])}
