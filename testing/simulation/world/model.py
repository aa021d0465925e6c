"""Provides models of arithmetic, and computes their right answers a second time.

The output of a row depends on each token and its position, on the model and on the revision. It
does not depend on the other rows of the batch.
"""

import math
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from tokenizers import Tokenizer
from typing_extensions import override

from sluicegate.backends.errors import ModelFailed, ModelProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.padded_batch import PaddedBatch, pad
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.types import FloatArray, OutputKind
from testing.model_repository import DIMENSIONS, write_encoder, write_head, write_model

ENCODERS: Final = ("tiny", "other")
SHARED: Final = "other"
"""The model whose results all tenants share."""
HEAD: Final = "mood"
GUARD: Final = "chat"
GUARD_PATH: Final = f"/v1/guard/{GUARD}"
_DETECTORS: Final = "detectors"
_REDACTED: Final = "money"
GUARDS: Final[Mapping[str, Any]] = {
    GUARD: {
        "model": _DETECTORS,
        "on_error": "block",
        "detectors": [
            {
                "name": "anger",
                "kind": "classifier",
                "action": "block",
                "model": HEAD,
                "labels": {"negative": 0.8},
            },
            {
                "name": "joy",
                "kind": "classifier",
                "action": "flag",
                "model": HEAD,
                "labels": {"positive": 0.8},
            },
            {"name": "topic", "kind": "words", "action": "redact", "words": [_REDACTED]},
        ],
    }
}
"""The guards of the configuration document."""
LABELS: Final = ("negative", "positive")
BROKEN: Final = b"broken"
"""The content of a graph that cannot be opened."""
_GRAPH: Final = "graph.arithmetic"
_PRIME: Final = 1021
_TABLE: Final = np.random.default_rng(7).standard_normal(_PRIME).astype(np.float32)
_TOLERANCE: Final = 1e-4


class Pace:
    """What is wrong with the models of a machine: faults change it while backends run.

    Runs take `slowness` times their usual time. With a `failure`, each run raises the error that it
    makes. A `damage` makes a wrong output out of the right one.
    """

    def __init__(self) -> None:
        self.slowness = 1.0
        self.failure: Callable[[], Exception] | None = None
        self.damage: Callable[[FloatArray], FloatArray] | None = None

    def heal(self) -> None:
        """Behave as usual from now on."""
        self.slowness, self.failure, self.damage = 1.0, None, None


FAILURES: Final[Mapping[str, Callable[[], Exception]]] = {
    "fails": lambda: ModelFailed("the simulated model fails"),
}


def _with(number: float) -> Callable[[FloatArray], FloatArray]:
    """Return what puts a number into the first row of a batch."""

    def damage(output: FloatArray) -> FloatArray:
        output[0, ..., -1] = number
        return output

    return damage


def _misshape(output: FloatArray) -> FloatArray:
    """Return an output with another number of rows or another width; its values decide which."""
    shapes = (output[:-1], np.concatenate([output[:1], output]), output[..., :-1], output[..., :1])
    return shapes[zlib.crc32(output.tobytes()) % len(shapes)]


DAMAGES: Final[Mapping[str, Callable[[FloatArray], FloatArray]]] = {
    "nan": _with(math.nan),
    "infinite": _with(-math.inf),
    "shape": _misshape,
}


class ArithmeticExecutor(ModelExecutor):
    """Computes rows from their token ids, and takes the time that its cost model predicts."""

    def __init__(self, source: GraphSource, pace: Pace) -> None:
        content = source.path.read_bytes()
        if content == BROKEN:
            raise ModelProblem(f"{source.path} is broken")
        self.provider = "ArithmeticExecutionProvider"
        self.worker_threads = 2
        self.dimensions = source.dimensions
        self.cost = CostModel(base=2e-3, padded=2e-4, square=0.0)
        self._salt = zlib.crc32(content)
        self._pace = pace

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        rows, length = batch.ids.shape
        usual = self.cost.seconds(rows=rows, longest=length, tokens=batch.ids.size)
        time.sleep(usual * self._pace.slowness)
        if self._pace.failure is not None:
            raise self._pace.failure()
        output = compute(self._salt, batch)
        return output if self._pace.damage is None else self._pace.damage(output)


def compute(salt: int, batch: PaddedBatch) -> FloatArray:
    """Return the output of a batch for a graph whose content has the checksum `salt`."""
    values = (batch.ids.astype(np.int64) + 3 * batch.type_ids + 1) * batch.mask
    places = np.arange(1, values.shape[1] + 1, dtype=np.int64)
    hashes = (values * values * (31 * places + 17)) % _PRIME
    if batch.output is not OutputKind.TOKENS:
        hashes = hashes.sum(axis=1)
    spread = np.arange(1, DIMENSIONS + 1, dtype=np.int64) * (salt % 997 + 1)
    output: FloatArray = _TABLE[(hashes[..., None] * spread + salt) % _PRIME]
    return output


def write_models(root: Path, revision: int = 1) -> None:
    """Write all models; the revision's number is in the graphs of the encoders."""
    for name in ENCODERS:
        write_revision(root, name, revision)
    write_head(root, HEAD, list(LABELS))
    detectors = {"kind": "algorithm", "algorithm": "guard", "uses": [HEAD], "tasks": ["guard"]}
    write_model(root, _DETECTORS, detectors)


def write_revision(root: Path, name: str, revision: int, *, is_broken: bool = False) -> None:
    """Write a revision of an encoder. Its folder appears atomically, as a reload requires."""
    draft = root / f".draft-{name}-{revision}"
    folder = write_encoder(draft, name, revision=revision, graph=_GRAPH)
    (folder / _GRAPH).write_bytes(BROKEN if is_broken else f"{name} {revision}".encode())
    (root / name).mkdir(parents=True, exist_ok=True)
    folder.rename(root / name / str(revision))
    (draft / name).rmdir()
    draft.rmdir()


class Oracle:
    """Knows the right answers of every revision in the repositories that it has read."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Tokenizer, int]] = {}
        self._heads: dict[str, tuple[str, FloatArray, FloatArray]] = {}
        self._vectors: dict[tuple[str, str, str], FloatArray] = {}
        """Outputs by model, revision and text."""
        self._guards: dict[str, str] = {}
        """The revision of the head that a revision of the guard's model uses."""

    def learn(self, root: Path) -> None:
        """Read the newest revision of each model."""
        models = read_catalogue(root).models
        for name, model in models.items():
            if name == _DETECTORS:
                self._guards[model.revision] = models[HEAD].revision
                continue
            if name == HEAD:
                weights = np.load(model.folder / "head.npz")
                layers = weights["w0"].astype(np.float32), weights["b0"].astype(np.float32)
                # The revision of a head depends on its encoder's.
                self._heads[model.revision] = models[ENCODERS[0]].revision, *layers
                continue
            tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            salt = zlib.crc32((model.folder / _GRAPH).read_bytes())
            self._known[name, model.revision] = tokenizer, salt

    def embedding(self, model: str, revision: str, text: str) -> FloatArray:
        """Return the normalized vector of a text."""
        vector = self._pooled(model, revision, text)
        normalized: FloatArray = vector / np.linalg.norm(vector)
        return normalized

    def _pooled(self, model: str, revision: str, text: str) -> FloatArray:
        known = model, revision, text
        if known not in self._vectors:
            tokenizer, salt = self._known[model, revision]
            ids = np.array(tokenizer.encode(text).ids, dtype=np.int32)
            self._vectors[known] = compute(salt, pad([ids], OutputKind.POOLED))[0]
        return self._vectors[known]

    def problem(self, path: str, asked: Mapping[str, Any], body: bytes) -> str:
        """Return what is wrong with an answer; empty if it is right."""
        try:
            answer = msgspec.json.decode(body)
            model, revision = answer["model"], answer["revision"]
            if model != asked.get("model", _DETECTORS):
                return f"the answer of model {model}"
            results = answer["results"]
            check = {
                "/v1/embed": self._embeds,
                "/v1/classify": self._classifies,
                GUARD_PATH: self._guards_texts,
            }.get(path, self._ranks)
            return check(model, revision, asked, results)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            return f"{type(error).__name__} {error}"

    def _embeds(self, model: str, revision: str, asked: Mapping[str, Any], results: Any) -> str:
        if len(results) != len(asked["input"]):
            return "another number of items"
        expected = [self.embedding(model, revision, text) for text in asked["input"]]
        return _compare(expected, [each["embedding"] for each in results])

    def _ranks(self, model: str, revision: str, asked: Mapping[str, Any], results: Any) -> str:
        query = self.embedding(model, revision, asked["query"])
        scores = [float(query @ self.embedding(model, revision, d)) for d in asked["documents"]]
        found = {each["index"]: each["score"] for each in results}
        if len(found) != asked.get("top_n", len(scores)):
            return "another number of documents"
        ranked = sorted(scores, reverse=True)[: len(found)]
        wrong = _compare([scores[index] for index in found], list(found.values()))
        return wrong or _compare(ranked, sorted(found.values(), reverse=True))

    def _classifies(self, _: str, revision: str, asked: Mapping[str, Any], results: Any) -> str:
        texts, top = asked["input"], asked.get("top_k", len(LABELS))
        if len(results) != len(texts):
            return "another number of items"
        for text, result in zip(texts, results, strict=True):
            scores = self._scores(revision, text, asked.get("function", "softmax"))
            order = np.argsort(-scores)[:top]
            found = result["labels"]
            if [each["label"] for each in found] != [LABELS[place] for place in order]:
                return "other labels"
            if wrong := _compare(scores[order].tolist(), [each["score"] for each in found]):
                return wrong
        return ""

    def _scores(self, revision: str, text: str, function: str) -> FloatArray:
        """Return the score of each label."""
        encoder, weights, biases = self._heads[revision]
        logits = self._pooled(ENCODERS[0], encoder, text) @ weights + biases
        powers = np.exp(logits - logits.max())
        scores: FloatArray = powers / powers.sum()
        if function == "sigmoid":
            scores = 1 / (1 + np.exp(-logits))
        return scores

    def _guards_texts(self, _: str, revision: str, asked: Mapping[str, Any], results: Any) -> str:
        if len(results) != len(asked["input"]):
            return "another number of verdicts"
        judged = zip(asked["input"], results, strict=True)
        wrong = (self._wrong_verdict(self._guards[revision], *each) for each in judged)
        return next(filter(None, wrong), "")

    def _wrong_verdict(self, head: str, text: str, result: Mapping[str, Any]) -> str:
        """A verdict is the strongest action, or blocks because the text was not read completely."""
        verdict, found = result["verdict"], {each["detector"] for each in result["findings"]}
        if "error" in result:
            is_right = verdict == "block"
            return "" if is_right else f"the verdict {verdict} on a text that was not read"
        scores = dict(zip(LABELS, self._scores(head, text, "softmax"), strict=True))
        detectors = GUARDS[GUARD]["detectors"]
        expected = {each["name"] for each in detectors if _finds(each, text, scores, found)}
        if found != expected:
            return f"findings of {sorted(found)} instead of {sorted(expected)}"
        if verdict != _verdict(expected):
            return f"the verdict {verdict} with findings of {sorted(found)}"
        if verdict == "redact" and _REDACTED in result["text"]:
            return "a text that is not redacted"
        return ""


def _finds(
    detector: Mapping[str, Any], text: str, scores: Mapping[str, float], found: Collection[str]
) -> bool:
    """Return whether a detector finds something. At its threshold, what it `found` is right."""
    if words := detector.get("words"):
        return not set(words).isdisjoint(text.split())
    ((label, least),) = detector["labels"].items()
    if abs(scores[label] - least) < _TOLERANCE:
        return detector["name"] in found
    return bool(scores[label] > least)


def _verdict(found: Collection[str]) -> str:
    """Return the strongest action of the detectors that found something."""
    actions = {each["action"] for each in GUARDS[GUARD]["detectors"] if each["name"] in found}
    return next((each for each in ("block", "redact", "flag") if each in actions), "allow")


def _compare(expected: Sequence[Any], found: Sequence[Any]) -> str:
    if np.shape(expected) != np.shape(found):
        return "another shape"
    return "" if np.allclose(expected, found, rtol=0.0, atol=_TOLERANCE) else "wrong numbers"
