"""Holds what `gliner` and `gliner2` found with the checkpoints that they wrote."""

from pathlib import Path

import msgspec

# A label, the first character, the character after the last one, and a score.
Found = tuple[str, int, int, float]
# A label, and the same of the head and of the tail.
Related = tuple[str, int, int, float, int, int, float]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a text, and the labels and options of its question."""

    text: str
    labels: list[str]
    threshold: float
    flat: bool
    multi_label: bool


def descriptions(asked: Asked) -> dict[str, str]:
    """Return a description of every second label of a question."""
    return {label: f"What is called {label}, or not." for label in asked.labels[::2]}


class GlinerAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the entities of each question: asked alone, and in batches of eight questions."""

    asked: list[Asked]
    alone: list[list[Found]]
    batched: list[list[Found]]
    scores: list[list[float]] = []
    batched_scores: list[list[float]] = []
    """The scores of the labels for the whole text, in their order."""
    relations: list[list[Related]] = []
    batched_relations: list[list[Related]] = []
    """The relations whose types are the labels."""
    described: list[list[Found]] = []
    described_relations: list[list[Related]] = []
    """What the first questions find alone, if some labels have descriptions."""


def answers_file(folder: Path) -> Path:
    """Return the file of the answers of a checkpoint's folder."""
    return folder.with_name(f"{folder.name}.answers.json")


def read_answers(folder: Path) -> GlinerAnswers:
    """Return the answers of a checkpoint's folder."""
    return msgspec.json.decode(answers_file(folder).read_bytes(), type=GlinerAnswers)
