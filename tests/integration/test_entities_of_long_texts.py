"""Entities where texts are awkward: offsets by character, and windows that cut words."""

import itertools
import unicodedata
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate.wire.protocol import EntitiesParameters, Failed, Task
from testing.model_repository import DIMENSIONS, write_encoder, write_head
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio
AGGREGATIONS = ["none", "simple", "first", "average", "max"]
WORDS = [
    "paris",
    "naïve",
    "cafe\u0301",
    "👩‍👩‍👧",
    "good",
    "שלום",
    "ab\u0308c",
    "moneycard",
    "filmz,",
    "ﬁsh",
]
LONG = " ".join(word * (1 + n % 3) for n, word in zip(range(160), itertools.cycle(WORDS)))


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    """One model that reads 16 tokens, and one that reads all; both see each token by itself."""
    models = tmp_path / "models"
    for name, most in (("narrow", 16), ("wide", 20_000)):
        write_encoder(models, f"{name}-encoder", max_tokens=most, tasks=[])
        write_head(
            models,
            name,
            ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
            encoder=f"{name}-encoder",
            task="entities",
            output="tokens",
        )
    executor = DummyExecutor(dimensions=DIMENSIONS)
    async with running_backend(models, executor, max_batch_tokens=20_000) as running:
        yield running


async def entities(backend: Backend, model: str, text: str, aggregation: Any) -> list[Any]:
    parameters = EntitiesParameters(aggregation=aggregation)
    answer = await backend.answer(model, Task.ENTITIES, text, parameters=parameters)
    found: list[Any] = answer["entities"]
    return found


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
async def test_windows_find_what_one_reading_of_the_whole_text_finds(
    backend: Backend, aggregation: str
) -> None:
    narrow = await entities(backend, "narrow", LONG, aggregation)
    wide = await entities(backend, "wide", LONG, aggregation)

    assert len(narrow) > 20
    assert narrow == wide


@pytest.mark.parametrize("cut", range(1, 40))
async def test_wherever_a_window_ends_the_answer_is_the_same(backend: Backend, cut: int) -> None:
    text = "good " * cut + "abcdefghijklmnopqrstuvwxyz " + "paris " * 20

    assert await entities(backend, "narrow", text, "first") == await entities(
        backend, "wide", text, "first"
    )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
async def test_every_entity_is_where_it_says_and_ends_with_a_whole_character(
    backend: Backend, aggregation: str
) -> None:
    for entity in await entities(backend, "narrow", LONG, aggregation):
        assert LONG[entity["start"] : entity["end"]] == entity["text"]
        if aggregation != "none":
            assert not unicodedata.combining((LONG + " ")[entity["end"]])


@pytest.mark.parametrize("aggregation", ["first", "average", "max"])
async def test_no_word_is_cut(backend: Backend, aggregation: str) -> None:
    borders = (" ", ",")
    for entity in await entities(backend, "narrow", LONG, aggregation):
        before, after = f" {LONG}"[entity["start"]], f"{LONG} "[entity["end"]]
        assert before in borders or entity["text"][0] in borders
        assert after in borders


async def test_a_text_without_end_is_refused_and_says_what_to_do(backend: Backend) -> None:
    for text in ("good " * 1000, "good " * 100_000):
        (outcome,) = await backend.ask("narrow", Task.ENTITIES, [text])

        assert isinstance(outcome, Failed)
        assert outcome.code == "input_too_long"
        assert "; send " in outcome.detail
