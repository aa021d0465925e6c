"""Writes models with predictable answers. Each revision of a model answers differently."""

import itertools
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from loadtests.faults.topology import Question
from sluicegate.backends.executors.padded_batch import pad
from sluicegate.backends.executors.simulated import SimulatedExecutor
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.types import FloatArray, OutputKind
from testing.model_repository import DIMENSIONS, WORDS, write_encoder, write_model

MODEL = "tiny"
PATH = "/v1/embed"
_WORDS = 8
_TOLERANCE = 1e-4
_ALGORITHM = "judge"
INFER = f"/v1/infer/{_ALGORITHM}"
_CODE = """
async def run(item, ask):
    {line}
    return {{"length": len(str(item))}}
"""
_OTHERS = 500
"""A seed plus this number gives texts that no tenant's load has."""
_ODD, _LARGE, _ITEMS = 0.2, 0.05, 12


class _Result(msgspec.Struct):
    embedding: list[float]


class _Body(msgspec.Struct):
    revision: str
    results: list[_Result]


def write_revision(root: Path, number: int) -> None:
    """Write revision `number`, which has token ids and answers of its own.

    Its folder appears atomically, as a reload requires.
    """
    folder = write_encoder(root / f".{number}")
    path = folder / "tokenizer.json"
    document = msgspec.json.decode(path.read_bytes())
    vocabulary = document["model"]["vocab"]
    # The first four ids are special tokens.
    for place, word in enumerate(WORDS):
        vocabulary[word] = 4 + (place + number) % len(WORDS)
    path.write_bytes(msgspec.json.encode(document))
    target = root / MODEL / str(number)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(target)


def write_algorithm(root: Path, *, revision: int = 1, line: str = "pass") -> None:
    """Write a revision of the algorithm that runs the statement `line` for every item."""
    own = {"kind": "algorithm", "algorithm": "custom", "code": "own.py"}
    manifest = own | {"uses": [MODEL], "tasks": ["infer"]}
    folder = write_model(root, _ALGORITHM, manifest, revision)
    (folder / "own.py").write_text(_CODE.format(line=line))


def texts(seed: int) -> Iterator[str]:
    """Yield texts of a few words each. Texts are rarely repeated."""
    chooser = random.Random(seed)
    while True:
        yield " ".join(chooser.choices(WORDS, k=_WORDS))


class ModelOracle:
    """Makes requests for random texts, and knows the right answer of each revision in `learn`.

    `roots` are the repositories of the backends. Equal revision names mean equal revisions. If
    `mixed` is true, the oracle also asks an algorithm, and makes invalid requests and requests of
    many items.
    """

    def __init__(self, roots: Sequence[Path] = (), *, is_mixed: bool = False) -> None:
        self._roots = roots
        self._is_mixed = is_mixed
        self._known: dict[str, Tokenizer] = {}
        self._executor = SimulatedExecutor(
            dimensions=DIMENSIONS, worker_threads=1, base=0.0, token=0.0
        )
        self.learn()

    def learn(self) -> None:
        """Read the newest revision of each repository."""
        for root in self._roots:
            model = read_catalogue(root).models[MODEL]
            tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            self._known[model.revision] = tokenizer

    def questions(self, seed: int) -> Iterator[Question]:
        """Yield a question about each of `texts(seed)`.

        In a mixed load, a fifth are unusual, a sixth ask the algorithm, and some have many items.
        """
        chooser, numbers, more = random.Random(seed), itertools.count(), texts(seed + _OTHERS)
        for text in texts(seed):
            plain = Question(path=PATH, body=_body(text))
            if self._is_mixed and chooser.random() < _ODD:
                yield chooser.choice(_odd(plain))
            elif self._is_mixed and chooser.random() < _ODD:
                item = f"item {seed} {next(numbers)}"
                yield Question(path=INFER, body=msgspec.json.encode({"inputs": [item]}))
            elif self._is_mixed and chooser.random() < _LARGE:
                yield Question(path=PATH, body=_body(*islice(more, _ITEMS)), items=_ITEMS)
            else:
                yield plain

    def is_right(self, question: Question, body: bytes) -> bool:
        """Return whether `body` is the answer of the revision that it names."""
        asked = msgspec.json.decode(question.body)
        if question.path == INFER:
            expected = [{"length": len(each)} for each in asked["inputs"]]
            return bool(msgspec.json.decode(body).get("results") == expected)
        return self.are_right(asked["input"], body)

    def are_right(self, asked: Sequence[str], body: bytes) -> bool:
        """Return whether `body` has the embedding of each text, in order, and nothing else."""
        answer = msgspec.json.decode(body, type=_Body)
        tokenizer = self._known.get(answer.revision)
        if tokenizer is None or len(answer.results) != len(asked):
            return False
        expected = [self.embedding(tokenizer, text) for text in asked]
        found = [each.embedding for each in answer.results]
        is_whole = all(len(each) == DIMENSIONS for each in found)
        return is_whole and np.allclose(expected, found, rtol=0.0, atol=_TOLERANCE)

    def embedding(self, tokenizer: Tokenizer, text: str) -> FloatArray:
        """Return the right embedding of a text, computed with the tokenizer of a revision."""
        ids = np.array(tokenizer.encode(text).ids, dtype=np.int32)
        (vector,) = self._executor.run(pad([ids], OutputKind.POOLED))
        expected: FloatArray = vector / np.linalg.norm(vector)
        return expected


def _body(*texts: str) -> bytes:
    return msgspec.json.encode({"model": MODEL, "input": texts})


def _odd(plain: Question) -> list[Question]:
    """Return unusual variants of a request, some of them invalid."""

    def changed(*statuses: int, **fields: object) -> Question:
        return msgspec.structs.replace(plain, statuses=frozenset(statuses), **fields)

    return [
        changed(400, body=b'{"model": "tin'),
        changed(400, body=msgspec.json.encode({"model": MODEL, "input": 7})),
        changed(404, body=msgspec.json.encode({"model": "none", "input": "a film"})),
        changed(401, key="sk-nobody-has-this-key"),
        changed(200, headers={"cache-control": "no-store"}),
        changed(200, is_left=True),
    ]
