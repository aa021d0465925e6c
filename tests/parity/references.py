"""Reads and writes the answers of the reference libraries in small files.

Scores and values are kept as integers, in steps of `_STEP`: twenty times finer than what they are
compared to.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tests.parity.texts import DATA

Aggregation = Literal["none", "simple", "first", "average", "max"]
AGGREGATIONS: tuple[Aggregation, ...] = ("none", "simple", "first", "average", "max")
Numbers = NDArray[np.float64]
_STEP = 5e-6


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """An entity of a text, with its tag or group as `label`; or an answer in a context."""

    text: int
    label: str
    start: int
    end: int
    score: float


class References:
    """The answers on one checkpoint: arrays of scores by task, and entities by aggregation.

    Answers to questions are entities, too, by the name of what was `ASKED`.
    """

    def __init__(self) -> None:
        self.scores: dict[str, Numbers] = {}
        self.entities: dict[str, list[Entity]] = {}
        # The spread of the logits over the texts: near zero, parity would show nothing.
        self.spread = 0.0

    def take(self, most: int | None) -> "References":
        """Return those of the first `most` texts alone."""
        if most is None:
            return self
        found = References()
        found.spread = self.spread
        found.scores = {task: scores[:most] for task, scores in self.scores.items()}
        found.entities = {
            aggregation: [entity for entity in entities if entity.text < most]
            for aggregation, entities in self.entities.items()
        }
        return found

    def write(self, path: Path) -> None:
        """Write them to a file."""
        arrays: dict[str, Any] = {"spread": np.array(self.spread)}
        for task, scores in self.scores.items():
            arrays[f"scores/{task}"] = _pack(scores)
        for aggregation, entities in self.entities.items():
            labels = sorted({entity.label for entity in entities})
            arrays[f"labels/{aggregation}"] = np.array(labels)
            table = [[e.text, labels.index(e.label), e.start, e.end] for e in entities]
            arrays[f"places/{aggregation}"] = np.array(table, dtype=np.uint16).reshape(-1, 4)
            arrays[f"surety/{aggregation}"] = _pack(np.array([e.score for e in entities]))
        np.savez_compressed(path, **arrays)


def read_references(path: Path) -> References:
    """Return the answers kept in a file."""
    found = References()
    with np.load(path) as arrays:
        found.spread = float(arrays["spread"])
        for name in arrays.files:
            part, _, task = name.partition("/")
            if part == "scores":
                found.scores[task] = _unpack(arrays[name])
        for name in arrays.files:
            part, _, aggregation = name.partition("/")
            if part != "labels":
                continue
            labels = arrays[f"labels/{aggregation}"].tolist()
            surety = _unpack(arrays[f"surety/{aggregation}"])
            found.entities[aggregation] = [
                Entity(text=text, label=labels[label], start=start, end=end, score=float(score))
                for (text, label, start, end), score in zip(
                    arrays[f"places/{aggregation}"].tolist(), surety, strict=True
                )
            ]
    return found


def reference_file(name: str) -> Path:
    """Return where the references on a checkpoint are kept."""
    return DATA / f"{name}.npz"


def _pack(numbers: Numbers) -> NDArray[np.int32]:
    return np.round(np.asarray(numbers, dtype=np.float64) / _STEP).astype(np.int32)


def _unpack(steps: NDArray[np.int32]) -> Numbers:
    return steps.astype(np.float64) * _STEP
