"""Compares configuration documents line by line, after converting both to the same form of YAML.

All functions are pure.
"""

import difflib
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import yaml

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.config.load import load_sources, without_defaults
from sluicegate.gateway.config.sources import DocumentSource
from sluicegate.gateway.errors import ConfigurationError

_CONTEXT = 3
MOST_LINES = 2_000
"""The console shows at most this many lines of a difference."""


class Change(StrEnum):
    """Says whether a line of a difference is added, removed, unchanged, or a header."""

    SAME = "same"
    ADDED = "added"
    REMOVED = "removed"
    PLACE = "place"
    """The header of a hunk. It says where the following lines are in the two texts."""


class DiffLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a difference."""

    change: Change
    text: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The lines in which two documents differ, with some lines before and after as context."""

    lines: list[DiffLine]
    added: int
    removed: int
    is_cut: bool
    """Whether lines were left out because there are too many."""


def normalised(sources: Sequence[DocumentSource]) -> str:
    """Return a document as YAML, with fields in the schema's order and without default values.

    If this version of the gateway cannot read the document, the document's files are returned
    unchanged.
    """
    try:
        document = load_sources(sources)
    except ConfigurationError:
        return "\n".join(f"# {source.name}\n{source.text}" for source in sources)
    return as_yaml(document)


def as_yaml(document: Document) -> str:
    """Return a document as YAML. Fields that have their default values are left out."""
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
