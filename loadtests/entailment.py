"""Writes a classifier of pairs of texts that runs the demo encoder.

The classifier's answers are useless, but it takes as much processor time as a real classifier.
"""

from pathlib import Path

from testing.model_repository import write_head, write_model

JUDGE, ZERO_SHOT = "bench-nli", "bench-zero-shot"
LABELS = ["music", "work", "family", "picture", "world", "life", "time", "people", "story", "fast"]


def write_entailment(models: Path) -> None:
    """Write the classifier, and a zero-shot classifier that uses it."""
    labels = ["contradiction", "neutral", "entailment"]
    write_head(models, JUDGE, labels, dimensions=384, encoder="minilm")
    write_algorithm(models, ZERO_SHOT, "zero-shot-entailment", "zero-shot", uses=JUDGE)


def write_algorithm(
    models: Path, name: str, algorithm: str, task: str, *, uses: str, **options: str
) -> None:
    """Write an algorithm that calls another model."""
    manifest = {"kind": "algorithm", "algorithm": algorithm, "uses": [uses], "tasks": [task]}
    write_model(models, name, manifest | ({"options": options} if options else {}))
