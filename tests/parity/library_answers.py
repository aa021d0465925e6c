"""Holds what the reference libraries answered of a checkpoint that they wrote."""

from pathlib import Path
from typing import Any

import msgspec

CANDIDATES = ["money", "travel"]
TEMPLATE = "This is about {}."
POOL_FACTOR = 2
FAMILIES = (
    "bert",
    "distilbert",
    "roberta",
    "xlm-roberta",
    "mpnet",
    "electra",
    "albert",
    "deberta-v2",
    "modernbert",
)


class LibraryAnswers(msgspec.Struct, kw_only=True):
    """Describes a checkpoint in `notes`, and holds the answers of each task to all texts.

    With a `failure` the libraries do not answer at all.
    """

    name: str
    family: str
    purpose: str
    notes: list[str]
    texts: list[str]
    versions: str
    labels: list[str] = []
    scores: dict[str, list[Any]] = {}
    failure: str | None = None


def answers_file(folder: Path) -> Path:
    """Return the file of the answers of a checkpoint's folder."""
    return folder.with_name(f"{folder.name}.answers.json")


def read_answers(folder: Path) -> LibraryAnswers:
    """Return the answers of a checkpoint's folder."""
    return msgspec.json.decode(answers_file(folder).read_bytes(), type=LibraryAnswers)
