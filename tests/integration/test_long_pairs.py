"""Windows of a long text beside a query, labels or choices: equal to those made by hand."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
from tokenizers import Tokenizer

from sluicegate.wire.protocol import (
    ChooseParameters,
    ClassifyParameters,
    Done,
    Failed,
    Parameters,
    RerankParameters,
    Task,
    ZeroShotParameters,
)
from testing.model_repository import (
    write_encoder,
    write_head,
    write_model,
    write_repository,
)
from tests.support.backend_calls import Backend, running_backend

pytestmark = pytest.mark.anyio
LIMIT, OVERLAP = 32, 5
QUERY = "is the film good?"
DOCUMENT = "good bad film money. card is the about this text, paris! bad " * 6
LABELS = ["money", "a good film"]
TEMPLATE = "this is about {}."
HYPOTHESES = [TEMPLATE.replace("{}", label) for label in LABELS]
TASKS = {
    "cross": ("cross-encoder", "rerank"),
    "nli": ("zero-shot-entailment", "zero-shot"),
    "choices": ("multiple-choice", "choose"),
}


class Reference:
    """Computes logits of windows from the files of the models, without the backend's code."""

    def __init__(self, models: Path) -> None:
        encoder, head = models / "tiny" / "1", np.load(models / "judge" / "1" / "head.npz")
        self._tokenizer = str(encoder / "tokenizer.json")
        self._session = onnxruntime.InferenceSession(encoder / "model.onnx")
        self._head = {name: head[name].astype(np.float32) for name in ("w0", "b0")}

    def vectors(self, first: str, second: str | None, strategy: str, length: int = LIMIT) -> Any:
        """Return a line for each window that Hugging Face's tokenizer makes by `stride`."""
        tokenizer = Tokenizer.from_file(self._tokenizer)
        tokenizer.no_padding()
        tokenizer.enable_truncation(length, stride=OVERLAP, strategy=strategy)
        found = tokenizer.encode(first, second)
        rows = [found, *found.overflowing]
        return np.concatenate([self._run(row.ids, row.type_ids) for row in rows])

    def tokens(self, text: str) -> int:
        """Return how many tokens a text has."""
        tokenizer = Tokenizer.from_file(self._tokenizer)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    def logits(self, first: str, second: str, strategy: str, length: int = LIMIT) -> Any:
        """Return the head's outputs for the windows of a pair."""
        vectors = self.vectors(first, second, strategy, length)
        return vectors @ self._head["w0"] + self._head["b0"]

    def _run(self, ids: Sequence[int], kinds: Sequence[int]) -> Any:
        mask = [1] * len(ids)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
        inputs = {name: np.array([values], dtype=np.int32) for name, values in feeds.items()}
        return self._session.run(["pooled"], inputs)[0]


def softmax(values: Any) -> Any:
    shifted = np.exp(values)
    return shifted / shifted.sum(axis=-1, keepdims=True)


def cosines(rows: Any, query: Any) -> Any:
    lengths = np.linalg.norm(rows, axis=-1) * np.linalg.norm(query, axis=-1)
    return (rows * query).sum(axis=-1) / lengths


def over(name: str, algorithm: str, tasks: list[str]) -> dict[str, Any]:
    return {"kind": "algorithm", "algorithm": algorithm, "uses": [name], "tasks": tasks}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_repository(tmp_path_factory.mktemp("long") / "models", real=True)
    write_head(root, "judge", ["contradiction", "neutral", "entailment"])
    for name, (algorithm, task) in TASKS.items():
        write_model(root, name, over("judge", algorithm, [task]))
    wanted = {name: [task] for name, (_, task) in TASKS.items()}
    write_encoder(root, "prompted", real=True, prompt="about this ")
    wanted |= {
        "prompted": ["rerank"],
        "tiny": ["embed", "rerank"],
        "judge": ["classify"],
        "topics": ["zero-shot", "choose"],
    }
    for name, tasks in wanted.items():
        for combine in (None, "mean", "max", "first"):
            fields = over(name, "long-document", tasks) | {
                "options": {"overlap": OVERLAP, **({"combine": combine} if combine else {})}
            }
            write_model(root, f"long-{name}-{combine}" if combine else f"long-{name}", fields)
    return root


@pytest.fixture
async def backend(models: Path) -> AsyncIterator[Backend]:
    async with running_backend(models) as running:
        yield running


def scores_of(answer: dict[str, Any]) -> list[float]:
    return [{label["label"]: label["score"] for label in answer["labels"]}[x] for x in LABELS]


async def test_the_best_window_of_a_document_is_its_score(backend: Backend, models: Path) -> None:
    query = RerankParameters(query=QUERY)
    by_window = softmax(Reference(models).logits(QUERY, DOCUMENT, "only_second"))[:, -1]
    assert len(by_window) > 3

    for name, expected in (
        ("long-cross", by_window.max()),
        ("long-cross-mean", by_window.mean()),
        ("long-cross-max", by_window.max()),
        ("long-cross-first", by_window[0]),
    ):
        found = await backend.answer(name, Task.RERANK, DOCUMENT, parameters=query)
        assert found["score"] == pytest.approx(expected, abs=1e-5), name


async def test_documents_are_ranked_by_the_vector_of_their_best_window(
    backend: Backend, models: Path
) -> None:
    reference = Reference(models)
    rows = reference.vectors(DOCUMENT, None, "longest_first")
    expected = cosines(rows, reference.vectors(QUERY, None, "longest_first"))

    found = await backend.answer(
        "long-tiny", Task.RERANK, DOCUMENT, parameters=RerankParameters(query=QUERY)
    )

    assert len(rows) > 2
    assert found["score"] == pytest.approx(expected.max(), abs=1e-5)


@pytest.mark.parametrize("multi", [True, False], ids=["each", "one"])
async def test_windows_entail_labels_and_their_mean_counts(
    backend: Backend, models: Path, *, multi: bool
) -> None:
    reference = Reference(models)
    lengths = [reference.tokens(text) for text in HYPOTHESES]
    logits = np.stack(
        [
            # The windows of each label are those that fit beside the longest.
            reference.logits(DOCUMENT, text, "only_first", LIMIT - max(lengths) + length)
            for text, length in zip(HYPOTHESES, lengths, strict=True)
        ],
        axis=1,
    )
    lines = softmax(logits[..., [0, 2]])[..., 1] if multi else softmax(logits[..., 2])
    parameters = ZeroShotParameters(labels=LABELS, hypothesis_template=TEMPLATE, multi_label=multi)

    for name, expected in (
        ("long-nli", lines.mean(axis=0)),
        ("long-nli-max", lines.max(axis=0)),
        ("long-nli-first", lines[0]),
    ):
        found = await backend.answer(name, Task.ZERO_SHOT, DOCUMENT, parameters=parameters)
        assert scores_of(found) == pytest.approx(expected.tolist(), abs=1e-5), name


async def test_choices_and_pairs_are_read_whole_beside_windows(
    backend: Backend, models: Path
) -> None:
    reference = Reference(models)
    both = ["is good", "is bad"]
    logits = np.stack([reference.logits(DOCUMENT, one, "only_first") for one in both], axis=1)
    expected = softmax(logits[..., 0]).mean(axis=0)

    item = {"prompt": DOCUMENT, "choices": both}
    found = await backend.answer("long-choices", Task.CHOOSE, item)
    raw = ClassifyParameters(function="none")
    pair = await backend.answer("long-judge", Task.CLASSIFY, (QUERY, DOCUMENT), parameters=raw)

    assert found["scores"] == pytest.approx(expected.tolist(), abs=1e-5)
    lines = reference.logits(QUERY, DOCUMENT, "only_second").mean(axis=0)
    assert pair["labels"][0]["score"] == pytest.approx(lines.max(), abs=1e-5)


async def test_a_text_that_fits_is_answered_as_without_windows(backend: Backend) -> None:
    query = RerankParameters(query=QUERY)
    labels = ZeroShotParameters(labels=["bad", "a card"])
    choice = {"prompt": "a", "choices": ["b", "c"]}
    cases: list[tuple[str, Task, Any, Parameters]] = [
        ("cross", Task.RERANK, "a good film", query),
        ("tiny", Task.RERANK, "a good film", query),
        ("prompted", Task.RERANK, "a good film", query),
        # Beside so long a query there is no room for windows.
        ("cross", Task.RERANK, "bad film", RerankParameters(query="good " * 25)),
        ("nli", Task.ZERO_SHOT, "a film", labels),
        ("topics", Task.ZERO_SHOT, "a film", labels),
        ("choices", Task.CHOOSE, choice, ChooseParameters()),
        ("topics", Task.CHOOSE, choice, ChooseParameters()),
        ("judge", Task.CLASSIFY, (QUERY, "a good film"), ClassifyParameters()),
    ]
    for name, task, item, parameters in cases:
        plain = await backend.answer(name, task, item, parameters=parameters)
        for combine in ("", "-max", "-first"):
            windowed = f"long-{name}{combine}"
            assert await backend.answer(windowed, task, item, parameters=parameters) == plain


async def test_what_no_window_can_hold_is_refused_with_what_to_do(backend: Backend) -> None:
    query, labels = RerankParameters(query=QUERY), ZeroShotParameters(labels=LABELS)
    many = ZeroShotParameters(labels=[chr(97 + n // 26) + chr(97 + n % 26) for n in range(99)])
    long = "has 25 tokens"
    cases: list[tuple[str, Parameters, str, str]] = [
        ("long-cross", RerankParameters(query="good " * 25), DOCUMENT, long),
        ("long-cross", RerankParameters(query="x" * 5000), DOCUMENT, "has 5000 characters"),
        ("long-cross", query, "bad " * 3000, "at most 64"),
        ("long-cross", RerankParameters(query=" "), " ", "the text is empty"),
        ("long-nli", labels, " ", "the text is empty"),
        ("long-nli", many, "good " * 300, "of 99 labels or choices; at most 1024 pairs"),
    ]
    for name, parameters, item, said in cases:
        task = Task.RERANK if isinstance(parameters, RerankParameters) else Task.ZERO_SHOT
        (outcome,) = await backend.ask(name, task, [item], parameters=parameters)

        assert isinstance(outcome, Failed), outcome
        assert (outcome.status, outcome.retryable) == (422, False)
        assert said in outcome.detail


async def test_only_the_first_window_cuts_and_says_so(backend: Backend) -> None:
    query = RerankParameters(query=QUERY)

    for name, cut in (("long-cross", False), ("long-cross-first", True)):
        (outcome,) = await backend.ask(name, Task.RERANK, [DOCUMENT], parameters=query)
        assert isinstance(outcome, Done)
        assert (outcome.truncated_from > LIMIT) == cut
        (outcome,) = await backend.ask(
            name, Task.RERANK, [DOCUMENT], parameters=query, truncate=False
        )
        assert isinstance(outcome, Failed if cut else Done)


async def test_every_window_is_counted_and_then_cached(backend: Backend) -> None:
    query = RerankParameters(query=QUERY)
    (first,) = await backend.ask("long-cross", Task.RERANK, [DOCUMENT], parameters=query)
    (again,) = await backend.ask("long-cross-mean", Task.RERANK, [DOCUMENT], parameters=query)

    assert isinstance(first, Done)
    assert isinstance(again, Done)
    assert first.rows > 3
    assert first.tokens > 3 * LIMIT - LIMIT
    assert (again.rows, again.known) == (0, first.rows)
