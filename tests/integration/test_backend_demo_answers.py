"""The demonstration models answer sensibly through the whole backend."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluicegate.wire.protocol import (
    ClassifyParameters,
    Done,
    EmbedParameters,
    EntitiesParameters,
    Failed,
    InferParameters,
    RerankParameters,
    Task,
    ZeroShotParameters,
)
from tests.support.backend_calls import Backend, running_backend

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def backend(demo_models: Path) -> AsyncIterator[Backend]:
    async with running_backend(demo_models, threads=2) as running:
        yield running


@pytest.mark.parametrize(
    ("text", "mood"),
    [
        ("a gorgeous, witty, seductive movie", "positive"),
        ("only labored gags and a dull plot", "negative"),
    ],
)
async def test_sentiment_tells_praise_from_blame(backend: Backend, text: str, mood: str) -> None:
    answer = await backend.answer("sentiment", Task.CLASSIFY, text)

    assert answer["labels"][0]["label"] == mood
    assert answer["labels"][0]["score"] > 0.8


async def test_banking_intents_knows_seventy_seven(backend: Backend) -> None:
    text = "My card has not arrived yet, when will it come?"
    whole = await backend.answer("banking-intents", Task.CLASSIFY, text)
    best = await backend.answer(
        "banking-intents", Task.CLASSIFY, text, parameters=ClassifyParameters(top_k=1)
    )

    assert len(whole["labels"]) == 77
    assert best["labels"] == whole["labels"][:1]
    assert best["labels"][0]["label"] == "card_arrival"


async def test_topics_need_no_training(backend: Backend) -> None:
    parameters = ZeroShotParameters(
        labels=["world politics", "sports", "business", "science and technology"]
    )
    text = "Champions again. The striker scored twice in the final minutes of the cup."
    answer = await backend.answer("topics", Task.ZERO_SHOT, text, parameters=parameters)
    choice = await backend.answer(
        "topics",
        Task.CHOOSE,
        {"prompt": "An animal that barks", "choices": ["a cat", "a dog", "a train"]},
    )

    assert answer["labels"][0]["label"] == "sports"
    assert choice["choice"] == 1


async def test_embeddings_are_those_of_the_published_model(backend: Backend) -> None:
    texts = ["A man is eating food.", "Someone eats a meal.", "The stock market fell."]
    vectors = [(await backend.answer("minilm", Task.EMBED, text))["embedding"] for text in texts]

    assert [len(vector) for vector in vectors] == [384] * 3
    near = sum(a * b for a, b in zip(vectors[0], vectors[1], strict=True))
    far = sum(a * b for a, b in zip(vectors[0], vectors[2], strict=True))
    assert near > 0.6
    assert far < 0.2


async def test_rerank_puts_the_answer_first(backend: Backend) -> None:
    parameters = RerankParameters(query="What is the capital of France?")
    scores = [
        (await backend.answer("minilm", Task.RERANK, text, parameters=parameters))["score"]
        for text in ("Paris is the capital of France.", "I like green tea.")
    ]

    assert scores[0] > 0.7
    assert scores[1] < 0.3


async def test_entities_lie_in_the_text(backend: Backend) -> None:
    text = "Yesterday 👍 Angela Merkel met Barack Obama in Berlin."
    answer = await backend.answer("entities-demo", Task.ENTITIES, text)

    assert answer["entities"]
    assert all(text[e["start"] : e["end"]] == e["text"] for e in answer["entities"])
    assert "Berlin" in {e["text"] for e in answer["entities"]}


async def test_a_review_of_a_complaint_costs_one_row_of_its_text(backend: Backend) -> None:
    await backend.answer("reviewer", Task.INFER, "a first text, so that topics are known")

    (outcome,) = await backend.ask(
        "reviewer",
        Task.INFER,
        ["This is terrible: my card was stolen and nobody helps me."],
        parameters=InferParameters(parameters={"threshold": 0.5}),
    )

    assert isinstance(outcome, Done)
    assert b'"needs_attention":true' in outcome.result
    assert b'"intent":{"label":' in outcome.result
    assert outcome.rows == 1


async def test_answers_do_not_depend_on_company(backend: Backend) -> None:
    texts = [f"sentence number {n} about {'a very long and ' * (n % 5)}thing" for n in range(40)]
    together = await asyncio.gather(
        *[backend.answer("minilm", Task.EMBED, text, scope="together") for text in texts]
    )

    for text, answer in zip(texts, together, strict=True):
        alone = await backend.answer(
            "minilm", Task.EMBED, text, scope="alone", parameters=EmbedParameters()
        )
        assert answer["embedding"] == pytest.approx(alone["embedding"], abs=2e-6)


@pytest.mark.parametrize("text", ["\x00\x07", "\u200b", "\u200f \ufeff", "\u0301"])
@pytest.mark.parametrize(
    ("model", "task"), [("sentiment", Task.CLASSIFY), ("entities-demo", Task.ENTITIES)]
)
async def test_a_text_of_which_nothing_is_left_is_empty(
    backend: Backend, model: str, task: Task, text: str
) -> None:
    (outcome,) = await backend.ask(model, task, [text])

    assert isinstance(outcome, Failed)
    assert (outcome.status, outcome.code, outcome.retryable) == (422, "empty_input", False)


@pytest.mark.parametrize("name", ["Jose\u0301", "Zoe\u0308", "Ángel", "Berlin"])
async def test_a_name_ends_with_its_accent(backend: Backend, name: str) -> None:
    """However the accent is written, before the end of a text or a space."""
    parameters = EntitiesParameters(aggregation="first")
    for text in (f"🎉🎉 We met {name}", f"🎉🎉 We met {name} in Madrid."):
        answer = await backend.answer("entities-demo", Task.ENTITIES, text, parameters=parameters)

        found = [e["text"] for e in answer["entities"] if e["start"] == text.index(name)]
        assert found in ([], [name])


async def test_names_far_apart_in_a_long_text_are_found_where_they_are(backend: Backend) -> None:
    """Far more tokens than the model reads; the same name is found at every distance."""
    filler = "the weather was mild and nobody said a word about it all day long, "
    text = "".join(f"Angela Merkel visited Paris 👍 {filler * 4}" for _ in range(12))

    answer = await backend.answer("entities-demo", Task.ENTITIES, text)

    places = [e["start"] for e in answer["entities"] if e["text"] == "Paris"]
    assert places == [n for n in range(len(text)) if text.startswith("Paris", n)]


async def test_a_cascade_answers_as_its_members(backend: Backend) -> None:
    clear, unclear = "a gorgeous, witty, seductive movie", "it is a film about a man"
    for text, member in ((clear, "sentiment-small"), (unclear, "sentiment")):
        answer = await backend.answer("sentiment-cascade", Task.CLASSIFY, text)

        assert answer == await backend.answer(member, Task.CLASSIFY, text)
