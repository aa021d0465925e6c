"""Runs a backend of real parts over imported checkpoints and collects its answers."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sluicegate.backends.model_tools.demo.source import find_source
from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.gateway.dialects.stored_results import answers_in
from sluicegate.wire.protocol import (
    AnswerParameters,
    Done,
    EntitiesParameters,
    Parameters,
    RerankParameters,
    Task,
    ZeroShotParameters,
)
from tests.parity.checkpoints import Checkpoint, all_checkpoints, write_checkpoint
from tests.parity.question_texts import ASKED, Asked, question_pairs
from tests.parity.references import AGGREGATIONS, Aggregation, Entity, Numbers, References
from tests.parity.texts import LABELS, TEMPLATE, pairs, questions, searches
from tests.support.backend_calls import Backend, running_backend

MINILM = "minilm"


def write_models(root: Path, checkpoints: Sequence[Checkpoint] | None = None) -> Path:
    """Import checkpoints (by default all, and MiniLM) into a repository; texts are cut to fit."""
    for checkpoint in all_checkpoints() if checkpoints is None else checkpoints:
        source = write_checkpoint(checkpoint, root / ".checkpoints" / checkpoint.name)
        entry = root / checkpoint.name / "1"
        convert(source, entry)
        (entry / "model.yaml").write_text("truncate: true\n")
    if checkpoints is None:
        convert(find_source(), root / MINILM / "1")
    return root


@contextmanager
def without_device_graphs() -> Iterator[None]:
    """Let imports leave out the graphs for GPUs, which take a third of their time."""
    with pytest.MonkeyPatch.context() as patch:
        written = "sluicegate.backends.model_tools.importing.convert.write_device_graphs"
        patch.setattr(written, lambda *_, **__: None)
        yield


@asynccontextmanager
async def serving(models: Path) -> AsyncIterator["Served"]:
    """Run a backend over a repository."""
    async with running_backend(models, threads=1, max_queue_rows=8192) as backend:
        yield Served(backend)


class Served:
    """Asks a backend what the references were asked."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def answer(
        self, checkpoint: Checkpoint, texts: list[str], most: int | None = None
    ) -> References:
        """Return the answers of a checkpoint to every task it has; of texts, the first `most`."""
        found = References()
        name, texts = checkpoint.name, checkpoint.choose(texts)
        first = texts[:most]
        if checkpoint.purpose in {"embed", "embed-cls"}:
            found.scores["embedding"] = await self.embeddings(name, first)
        elif checkpoint.purpose == "tokens":
            for aggregation in AGGREGATIONS:
                found.entities[aggregation] = await self.entities(name, first, aggregation)
        elif checkpoint.purpose == "answer":
            found.entities = await self.all_answers(name, most)
        elif checkpoint.purpose == "choice":
            found.scores["choice"] = await self.choices(name, texts, most)
        elif checkpoint.purpose == "cross":
            found.scores["rerank"] = await self.relevance(name, texts, most)
        else:
            labels = checkpoint.labels
            found.scores["single"] = await self.labels(name, first, labels)
            found.scores["pair"] = await self.labels(name, pairs(texts)[:most], labels)
            if checkpoint.purpose == "text":
                found.scores["zero-shot"] = await self.zero_shot(name, first, several=False)
                found.scores["zero-shot-multi"] = await self.zero_shot(name, first, several=True)
        return found

    async def all_answers(self, model: str, most: int | None) -> dict[str, list[Entity]]:
        """Return the answers to the first questions, by the name of what was asked."""
        pairs = question_pairs()[:most]
        return {name: await self.answers(model, pairs, asked) for name, asked in ASKED.items()}

    async def labels(self, model: str, items: Sequence[Any], labels: list[str]) -> Numbers:
        """Return the scores of `labels`, a line per item."""
        return _by_label(await self._ask(model, Task.CLASSIFY, items), labels)

    async def zero_shot(
        self, model: str, texts: list[str], *, several: bool, template: str = TEMPLATE
    ) -> Numbers:
        """Return the scores of the candidate labels, a line per text."""
        parameters = ZeroShotParameters(
            labels=LABELS, hypothesis_template=template, multi_label=several
        )
        return _by_label(await self._ask(model, Task.ZERO_SHOT, texts, parameters), LABELS)

    async def choices(self, model: str, texts: list[str], most: int | None) -> Numbers:
        """Return the scores of the options, a line per text."""
        items = [{"prompt": text, "choices": options} for text, options in questions(texts)]
        answers = await self._ask(model, Task.CHOOSE, items[:most])
        return np.array([answer["scores"] for answer in answers])

    async def relevance(self, model: str, texts: list[str], most: int | None) -> Numbers:
        """Return the scores of documents for their queries, `most` of them."""
        scores: list[float] = []
        for query, documents in searches(texts):
            if most is not None and len(scores) >= most:
                break
            parameters = RerankParameters(query=query)
            answers = await self._ask(model, Task.RERANK, documents, parameters)
            scores += [answer["score"] for answer in answers]
        return np.array(scores[:most])

    async def embeddings(self, model: str, texts: list[str]) -> Numbers:
        """Return a vector per text."""
        answers = await self._ask(model, Task.EMBED, texts)
        return np.array([answer["embedding"] for answer in answers])

    async def entities(
        self, model: str, texts: list[str], aggregation: Aggregation
    ) -> list[Entity]:
        """Return the entities of all texts."""
        parameters = EntitiesParameters(aggregation=aggregation)
        answers = await self._ask(model, Task.ENTITIES, texts, parameters)
        return [
            Entity(
                text=place,
                label=entity["label"],
                start=entity["start"],
                end=entity["end"],
                score=entity["score"],
            )
            for place, answer in enumerate(answers)
            for entity in answer["entities"]
        ]

    async def answers(
        self, model: str, pairs: Sequence[tuple[str, str]], asked: Asked
    ) -> list[Entity]:
        """Return the answers to all questions."""
        parameters = AnswerParameters(
            top_k=asked.top_k,
            max_answer_tokens=asked.max_answer_len,
            max_row_tokens=asked.max_seq_len,
            overlap=asked.doc_stride,
            align_to_words=asked.align_to_words,
        )
        items = [{"question": question, "context": context} for question, context in pairs]
        results = await self._ask(model, Task.ANSWER, items, parameters)
        return [
            Entity(text=place, label="answer", start=found.start, end=found.end, score=found.score)
            for place, result in enumerate(results)
            for found in answers_in(
                msgspec.json.encode(result),
                top_k=asked.top_k,
                or_none=asked.handle_impossible_answer,
            )
        ]

    async def _ask(
        self, model: str, task: Task, items: Sequence[Any], parameters: Parameters | None = None
    ) -> list[Any]:
        outcomes = await self._backend.ask(model, task, list(items), parameters=parameters)
        results = []
        for outcome in outcomes:
            assert isinstance(outcome, Done), outcome
            results.append(msgspec.json.decode(outcome.result))
        return results


def _by_label(answers: list[Any], labels: list[str]) -> Numbers:
    lines = []
    for answer in answers:
        scores = {label["label"]: label["score"] for label in answer["labels"]}
        lines.append([scores[label] for label in labels])
    return np.array(lines)
