"""Sends mixed requests: calls of an algorithm, wrong requests, and callers who hang up."""

import itertools
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
from typing_extensions import override

from loadtests.faults.model import MODEL, ModelOracle, texts, write_revision
from loadtests.faults.topology import Question
from testing.model_repository import write_model

ALGORITHM = "judge"
_INFER = f"/v1/infer/{ALGORITHM}"
_CODE = """
async def run(item, ask):
    {line}
    return {{"length": len(str(item))}}
"""
_LARGEST_BODY = 8 * 1024 * 1024
_OTHERS = 500
"""Added to a seed, gives texts of no other tenant."""
_ODD, _LARGE, _ITEMS = 0.2, 0.05, 12


class MixedOracle(ModelOracle):
    """Adds an algorithm, requests of many items, and some that are not answered with 200."""

    @override
    @staticmethod
    def write_models(root: Path) -> None:
        write_revision(root, 1)
        write_algorithm(root)

    @override
    def questions(self, seed: int) -> Iterator[Question]:
        """Yield a fifth of odd requests, a sixth for the algorithm, and some of many items."""
        chooser, numbers, more = random.Random(seed), itertools.count(), texts(seed + _OTHERS)
        for plain in super().questions(seed):
            if chooser.random() < _ODD:
                yield chooser.choice(_odd(plain))
            elif chooser.random() < _ODD:
                item = f"item {seed} {next(numbers)}"
                yield Question(path=_INFER, body=msgspec.json.encode({"inputs": [item]}))
            elif chooser.random() < _LARGE:
                body = msgspec.json.encode({"model": MODEL, "input": [*islice(more, _ITEMS)]})
                yield msgspec.structs.replace(plain, body=body, items=_ITEMS)
            else:
                yield plain

    @override
    def is_right(self, question: Question, body: bytes) -> bool:
        """Return whether the algorithm's lengths are right, or else the embeddings."""
        if question.path != _INFER:
            return super().is_right(question, body)
        inputs = msgspec.json.decode(question.body)["inputs"]
        results = msgspec.json.decode(body).get("results", [])
        return bool([{"length": len(each)} for each in inputs] == results)


def write_algorithm(root: Path, *, revision: int = 1, line: str = "pass") -> None:
    """Write a revision of the algorithm, which runs `line` for every item."""
    manifest = {
        "kind": "algorithm",
        "algorithm": "custom",
        "code": "own.py",
        "uses": [MODEL],
        "tasks": ["infer"],
    }
    folder = write_model(root, ALGORITHM, manifest, revision)
    (folder / "own.py").write_text(_CODE.format(line=line))


def _odd(plain: Question) -> list[Question]:
    """Return odd variants of a request."""

    def changed(*statuses: int, **fields: object) -> Question:
        return msgspec.structs.replace(plain, statuses=frozenset(statuses), **fields)

    return [
        changed(400, body=b'{"model": "tin'),
        changed(400, body=msgspec.json.encode({"model": MODEL, "input": 7})),
        changed(404, body=msgspec.json.encode({"model": "none", "input": "a film"})),
        changed(413, body=b"", declared_bytes=_LARGEST_BODY + 1),
        changed(401, key="sk-nobody-has-this-key"),
        changed(200, headers=(("cache-control", "no-store"),)),
        changed(200, is_left=True),
    ]
