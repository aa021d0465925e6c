"""Generates the arena's requests and compares answers with those given before any fault."""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any  # a result is JSON of three shapes

import msgspec

from loadtests.workload import sentences

_POPULAR = 60
_OTHERS = 600
_ITEMS = 2
_TOLERANCE = 1e-4
"""How far a number may be from the expected one; batches of other sizes round otherwise."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request; `kept` says whether the answer may come from the cache."""

    path: str
    model: str
    texts: tuple[str, ...]
    is_cached: bool

    @property
    def body(self) -> bytes:
        """The request's body."""
        return msgspec.json.encode({"model": self.model, "input": self.texts})


_KINDS: tuple[tuple[float, str, str, int, bool], ...] = (
    (0.50, "/v1/classify", "sentiment", 1, True),
    (0.20, "/v1/embed", "minilm", 1, True),
    (0.20, "/v1/classify", "sentiment-small", 1, False),
    (0.05, "/v1/classify", "banking-intents", _ITEMS, False),
    (0.05, "/v1/embed", "minilm", 1, False),
)
"""Share, route, model, items, and whether the cache may answer."""


def questions(seed: int) -> Iterator[Question]:
    """Yield requests without end over several models and routes, some of them cacheable."""
    chooser = random.Random(seed)
    popular, others = _texts()
    weights = [kind[0] for kind in _KINDS]
    while True:
        _, path, model, items, is_cached = chooser.choices(_KINDS, weights)[0]
        pool = popular if is_cached else others
        texts = tuple(chooser.sample(pool, items))
        yield Question(path=path, model=model, texts=texts, is_cached=is_cached)


def every_text() -> dict[tuple[str, str], list[str]]:
    """Return all texts that `questions` may ask, by route and model."""
    popular, others = _texts()
    return {(path, model): popular + others for _, path, model, _, _ in _KINDS}


class ExpectedAnswers:
    """The expected results by route, model and text, recorded before any fault."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self._results = dict(results)

    @classmethod
    def read(cls, path: Path) -> "ExpectedAnswers | None":
        """Return what was written to `path`, or nothing."""
        return cls(msgspec.json.decode(path.read_bytes())) if path.exists() else None

    def write(self, path: Path) -> None:
        """Store the results for later runs with the same models."""
        path.write_bytes(msgspec.json.encode(self._results))

    def add(self, path: str, model: str, texts: Sequence[str], body: bytes) -> None:
        """Record the results of an answer given without a fault.

        Raises:
            ValueError: an earlier answer to the same was another.
        """
        for text, result in zip(texts, msgspec.json.decode(body)["results"], strict=True):
            known = self._results.setdefault(_name(path, model, text), result)
            if not _alike(known, result):
                raise ValueError(f"two answers of {model} to one text differ before any fault")

    def is_right(self, question: Question, body: bytes) -> bool:
        """Return whether an answer has the expected results, item by item, and counts them."""
        try:
            answer = msgspec.json.decode(body)
            expected = [
                self._results[_name(question.path, question.model, t)] for t in question.texts
            ]
            is_counted = answer["usage"]["items"] == len(question.texts)
            return (
                is_counted
                and answer["model"] == question.model
                and _alike(expected, answer["results"])
            )
        except (msgspec.DecodeError, KeyError, TypeError):
            return False


def _alike(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, numbers within the tolerance."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return isinstance(other, int | float) and abs(one - other) <= _TOLERANCE
    return bool(one == other)


def _name(path: str, model: str, text: str) -> str:
    return f"{path} {model} {text}"


def _texts() -> tuple[list[str], list[str]]:
    found = sentences(_POPULAR + _OTHERS, seed=13)
    return found[:_POPULAR], found[_POPULAR:]
