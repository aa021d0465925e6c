"""Writes a model whose answers are predictable, in revisions that answer differently."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from backends.executors.dummy import SimulatedExecutor
from backends.executors.padded_batch import pad
from backends.repository.catalogue import read_catalogue
from backends.types import FloatArray, OutputKind
from loadtests.faults.topology import Question
from testing.model_repository import DIMENSIONS, WORDS, write_encoder

MODEL = "tiny"
PATH = "/v1/embed"
_WORDS = 8
_TOLERANCE = 1e-4


class _Result(msgspec.Struct):
    embedding: list[float]


class _Body(msgspec.Struct):
    revision: str
    results: list[_Result]


def write_revision(root: Path, number: int) -> None:
    """Write revision `number`. It has other token ids and answers than other revisions.

    Its folder appears atomically, as a reload requires.
    """
    folder = write_encoder(root / f".{number}")
    path = folder / "tokenizer.json"
    document = msgspec.json.decode(path.read_bytes())
    vocabulary = document["model"]["vocab"]
    # The words come after the four special tokens.
    for place, word in enumerate(WORDS):
        vocabulary[word] = 4 + (place + number) % len(WORDS)
    path.write_bytes(msgspec.json.encode(document))
    target = root / MODEL / str(number)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(target)


def texts(seed: int) -> Iterator[str]:
    """Yield texts of a few words each. Texts are rarely repeated."""
    chooser = random.Random(seed)
    while True:
        yield " ".join(chooser.choices(WORDS, k=_WORDS))


class ModelOracle:
    """Asks about random texts, and computes the right answers of every revision it has learned.

    `roots` are the repositories of the backends. Equal revision names mean equal revisions.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        self._known: dict[str, Tokenizer] = {}
        self._executor = SimulatedExecutor(
            dimensions=DIMENSIONS, worker_threads=1, base=0.0, token=0.0
        )
        self.learn()

    @staticmethod
    def write_models(root: Path) -> None:
        """Write the first revision of every model that is asked about."""
        write_revision(root, 1)

    def learn(self) -> None:
        """Read the newest revision of each repository."""
        for root in self._roots:
            model = read_catalogue(root).models[MODEL]
            tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            self._known[model.revision] = tokenizer

    def questions(self, seed: int) -> Iterator[Question]:
        """Yield a question about each of `texts(seed)`."""
        for text in texts(seed):
            yield Question(path=PATH, body=msgspec.json.encode({"model": MODEL, "input": [text]}))

    def is_right(self, question: Question, body: bytes) -> bool:
        """Return whether `body` answers the question as the revision that it names does."""
        return self.are_right(msgspec.json.decode(question.body)["input"], body)

    def are_right(self, asked: Sequence[str], body: bytes) -> bool:
        """Return whether `body` has the embedding of each text in order, and no other."""
        answer = msgspec.json.decode(body, type=_Body)
        tokenizer = self._known.get(answer.revision)
        if tokenizer is None or len(answer.results) != len(asked):
            return False
        return all(
            _is_near(self.embedding(tokenizer, text), np.array(result.embedding))
            for text, result in zip(asked, answer.results, strict=True)
        )

    def embedding(self, tokenizer: Tokenizer, text: str) -> FloatArray:
        """Return the right embedding of a text, by the tokenizer of a revision."""
        ids = np.array(tokenizer.encode(text).ids, dtype=np.int32)
        (vector,) = self._executor.run(pad([ids], OutputKind.POOLED))
        expected: FloatArray = vector / np.linalg.norm(vector)
        return expected


def _is_near(expected: FloatArray, found: FloatArray) -> bool:
    return found.shape == expected.shape and bool(np.abs(found - expected).max() <= _TOLERANCE)
