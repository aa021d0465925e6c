"""Compares documents line by line, in a normalised form of YAML. Pure."""

import difflib
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import yaml

from gateway.config.document import Document
from gateway.config.load import load_sources, without_defaults
from gateway.config.sources import DocumentSource
from gateway.errors import ConfigurationError

_CONTEXT = 3
MOST_LINES = 2_000
"""The most lines of a difference that are shown."""


class Change(StrEnum):
    """Says how a line differs."""

    SAME = "same"
    ADDED = "added"
    REMOVED = "removed"
    PLACE = "place"
    """A hunk header, which says where the next lines are."""


class DiffLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a difference."""

    change: Change
    text: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The lines by which two documents differ, with some lines of context."""

    lines: list[DiffLine]
    added: int
    removed: int
    is_cut: bool
    """Whether further lines are left out."""


def normalised(sources: Sequence[DocumentSource]) -> str:
    """Return a document as YAML, with fields in the order of the schema and without defaults.

    If this version cannot read the document, its files are returned unchanged.
    """
    try:
        document = load_sources(sources)
    except ConfigurationError:
        return "\n".join(f"# {source.name}\n{source.text}" for source in sources)
    return as_yaml(document)


def as_yaml(document: Document) -> str:
    """Return a document as YAML, without fields that have their default values."""
    shown = msgspec.to_builtins(without_defaults(document))
    text: str = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100)
    return text


def difference(before: str, after: str) -> Difference:
    """Return the difference between two texts."""
    found = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=_CONTEXT)
    lines = [_line(text) for text in list(found)[2:]]
    return Difference(
        lines=lines[:MOST_LINES],
        added=sum(line.change is Change.ADDED for line in lines),
        removed=sum(line.change is Change.REMOVED for line in lines),
        is_cut=len(lines) > MOST_LINES,
    )


def _line(text: str) -> DiffLine:
    kinds = {"+": Change.ADDED, "-": Change.REMOVED, " ": Change.SAME}
    kind = kinds.get(text[:1], Change.PLACE)
    return DiffLine(change=kind, text=text if kind is Change.PLACE else text[1:])
