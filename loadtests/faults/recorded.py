"""Sends requests to real models; compares answers with answers recorded before the fault."""

import random
from collections.abc import Iterator
from typing import Any  # a result is JSON of three shapes

import msgspec

from loadtests.faults.topology import Question, TopologyError, client_of
from loadtests.workload import sentences

_POPULAR, _OTHERS = 60, 600
_ITEMS_AT_ONCE = 60
_TOLERANCE = 1e-4
"""The largest difference between a number and the recorded number. Rounding depends on the sizes of
batches."""
_KINDS: tuple[tuple[float, str, str, int, bool], ...] = (
    (0.50, "/v1/classify", "sentiment", 1, True),
    (0.20, "/v1/embed", "minilm", 1, True),
    (0.20, "/v1/classify", "sentiment-small", 1, False),
    (0.05, "/v1/classify", "banking-intents", 2, False),
    (0.05, "/v1/embed", "minilm", 1, False),
)
"""For each kind of request: share, route, model, number of items, whether the cache may answer."""


class RecordedAnswers:
    """Makes requests for several models and routes; the recorded answers are the right ones."""

    def __init__(self) -> None:
        found = sentences(_POPULAR + _OTHERS, seed=13)
        self._popular, self._others = found[:_POPULAR], found[_POPULAR:]
        self._results: dict[tuple[str, str, str], Any] = {}

    def questions(self, seed: int) -> Iterator[Question]:
        """Yield endless requests. The cache can answer about two thirds of them."""
        chooser = random.Random(seed)
        weights = [kind[0] for kind in _KINDS]
        while True:
            _, path, model, items, is_cached = chooser.choices(_KINDS, weights)[0]
            texts = chooser.sample(self._popular if is_cached else self._others, items)
            yield Question(
                path=path,
                body=msgspec.json.encode({"model": model, "input": texts}),
                items=items,
                headers={} if is_cached else {"cache-control": "no-cache"},
            )

    def record(self, url: str, key: str) -> None:
        """Send every request twice to a gateway without a fault, and record the answers.

        Raises:
            TopologyError: a request fails, or its two answers differ.
        """
        texts = self._popular + self._others
        parts = [texts[n : n + _ITEMS_AT_ONCE] for n in range(0, len(texts), _ITEMS_AT_ONCE)]
        with client_of(url, key) as client:
            client.headers["cache-control"] = "no-cache"
            for path, model in sorted({(path, model) for _, path, model, _, _ in _KINDS}):
                for part in parts * 2:
                    answer = client.post(path, json={"model": model, "input": part})
                    if not answer.is_success:
                        raise TopologyError(f"{path} answers {answer.status_code} before any fault")
                    self.learn(path, model, part, answer.content)

    def learn(self, path: str, model: str, texts: list[str], body: bytes) -> None:
        """Record the results in an answer that was given without a fault.

        Raises:
            TopologyError: an earlier answer to the same text was different.
        """
        for text, result in zip(texts, msgspec.json.decode(body)["results"], strict=True):
            known = self._results.setdefault((path, model, text), result)
            if not _alike(known, result):
                raise TopologyError(f"two answers of `{model}` to one text differ before any fault")

    def is_right(self, question: Question, body: bytes) -> bool:
        """Return whether the answer names the model, counts the items and has the right results."""
        asked = msgspec.json.decode(question.body)
        model, texts = asked["model"], asked["input"]
        expected = [self._results[question.path, model, text] for text in texts]
        try:
            answer = msgspec.json.decode(body)
            found = (answer["usage"]["items"], answer["model"])
            return found == (len(texts), model) and _alike(expected, answer["results"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return False


def _alike(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, with a tolerance for numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return isinstance(other, int | float) and abs(one - other) <= _TOLERANCE
    return bool(one == other)
