"""Reads the texts that calibrate and evaluate: one a line, or a CSV with labels."""

import csv
from pathlib import Path

import msgspec

from backends.errors import StartProblem

_TEXT = ("text", "sentence")
_LABEL = ("label", "category", "intent")


class GoldenSet(msgspec.Struct, frozen=True, kw_only=True):
    """Holds texts, and their labels where they are known."""

    texts: list[str]
    labels: list[str] | None = None


def read_golden(path: Path) -> GoldenSet:
    """Read a `.csv` with a header that names a text and maybe a label, or a file of lines.

    Raises:
        StartProblem: the file cannot be read, or holds no text.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            golden = (
                _csv(file.read().splitlines(keepends=True), path)
                if (path.suffix == ".csv")
                else GoldenSet(texts=[line.strip() for line in file if line.strip()])
            )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StartProblem(f"cannot read `{path}`: {error}") from None
    if not golden.texts:
        raise StartProblem(f"`{path}` holds no texts")
    return golden


def _csv(lines: list[str], path: Path) -> GoldenSet:
    rows = csv.DictReader(lines)
    columns = rows.fieldnames or []
    text = next((name for name in _TEXT if name in columns), None)
    label = next((name for name in _LABEL if name in columns), None)
    if text is None:
        raise StartProblem(f"`{path}` needs a column `text`; it has {', '.join(columns)}")
    found = [row for row in rows if (row[text] or "").strip()]
    labels = [row[label] or "" for row in found] if label is not None else None
    return GoldenSet(texts=[row[text] for row in found], labels=labels)
