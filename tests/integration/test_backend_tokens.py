"""A backend shows the tokens that its models read, and takes them in place of texts."""

import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer as Library, models as library_models, pre_tokenizers

from sluicegate.wire.protocol import (
    DetokenizeParameters,
    Done,
    EmbedParameters,
    Failed,
    Task,
    TokenizeParameters,
)
from testing.model_repository import id_of, write_encoder, write_model, write_repository
from tests.support.backend_calls import Backend, running_backend

pytestmark = pytest.mark.anyio
LIMIT = 12
MOST = 64 * LIMIT * 16
TEXT = "Good film, isn't"
PIECES = ["[CLS]", "good", "film", ",", "is", "##n", "[UNK]", "t", "[SEP]"]
OFFSETS = [None, [0, 4], [5, 9], [9, 10], [11, 13], [13, 14], [14, 15], [15, 16], None]
LONG = " ".join(["good bad film"] * 7)


@pytest.fixture(scope="module")
async def backend(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[Backend]:
    models = write_repository(tmp_path_factory.mktemp("tokens") / "models", real=True)
    write_encoder(models, real=True, max_tokens=LIMIT, truncate=True)
    write_encoder(models, "whole", real=True, max_tokens=LIMIT)
    write_encoder(models, "prompted", real=True, max_tokens=LIMIT, prompt="about this ")
    for name, prompt in (("spaced", "query: "), ("joined", "query")):
        folder = write_encoder(models, name, real=True, max_tokens=LIMIT, prompt=prompt)
        sentence_pieces().save(str(folder / "tokenizer.json"))
    long = {"kind": "algorithm", "algorithm": "long-document", "uses": ["tiny"], "tasks": ["embed"]}
    write_model(models, "long", long | {"options": {"overlap": 2}})
    async with running_backend(models) as running:
        yield running


def sentence_pieces() -> Library:
    """Return one whose spaces belong to the word after them, one before a text included."""
    words = ["<unk>", "▁", "▁query", ":", "▁good", "▁film", "good", "▁a", "▁0", "▁."]
    made = Library(library_models.Unigram([(word, -2.0) for word in words], 0))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made


async def tokens_of(backend: Backend, text: str, model: str = "tiny", **asked: Any) -> Any:
    parameters = TokenizeParameters(**asked)
    return await backend.answer(model, Task.TOKENIZE, text, parameters=parameters)


async def refusal(backend: Backend, model: str, task: Task, item: Any) -> Failed:
    (outcome,) = await backend.ask(model, task, [item])
    assert isinstance(outcome, Failed), outcome
    assert (outcome.status, outcome.retryable) == (422, False)
    return outcome


async def test_tokens_are_shown_with_their_places_in_the_text(backend: Backend) -> None:
    (outcome,) = await backend.ask("tiny", Task.TOKENIZE, [TEXT])
    shown = await tokens_of(backend, TEXT)

    assert shown == {
        "count": 9,
        "fits": True,
        "windows": 1,
        "ids": [id_of(piece) for piece in PIECES],
        "tokens": PIECES,
        "offsets": OFFSETS,
    }
    assert isinstance(outcome, Done)
    assert (outcome.rows, outcome.tokens, outcome.known, outcome.truncated_from) == (0, 0, 0, 0)


async def test_special_tokens_and_all_but_counts_may_be_left_out(backend: Backend) -> None:
    bare = await tokens_of(backend, TEXT, add_special_tokens=False)
    counts = await tokens_of(backend, TEXT, counts_only=True)
    neither = await tokens_of(backend, TEXT, counts_only=True, add_special_tokens=False)

    assert (bare["tokens"], bare["offsets"], bare["count"]) == (PIECES[1:-1], OFFSETS[1:-1], 7)
    assert counts == {"count": 9, "fits": True, "windows": 1}
    assert neither == {"count": 7, "fits": True, "windows": 1}


@pytest.mark.parametrize("counts_only", [True, False])
@pytest.mark.parametrize(
    ("words", "overlap", "windows"),
    [(0, 2, 0), (10, 2, 1), (11, 2, 2), (18, 2, 2), (19, 2, 3), (30, 0, 3), (12, 32, 3)],
)
async def test_windows_are_counted_as_they_are_read(
    backend: Backend, words: int, overlap: int, windows: int, *, counts_only: bool
) -> None:
    text = " ".join(["good"] * words)

    found = await tokens_of(backend, text, overlap=overlap, counts_only=counts_only)
    of_prompted = await tokens_of(backend, text, "prompted", counts_only=counts_only)

    assert (found["count"], found["windows"]) == (words + 2, windows)
    assert found["fits"] == (windows < 2)
    assert of_prompted["fits"] == (words <= 8)


async def test_long_documents_are_read_in_as_many_windows(backend: Backend) -> None:
    (outcome,) = await backend.ask("long", Task.EMBED, [LONG], scope="alone")
    found = await tokens_of(backend, LONG, "long", overlap=2)

    assert isinstance(outcome, Done)
    assert outcome.rows + outcome.known == found["windows"] == 3


@pytest.mark.parametrize("model", ["tiny", "mood", "names", "topics", "reviewer", "long"])
async def test_every_model_shows_tokens_and_lists_no_task_more(
    backend: Backend, model: str
) -> None:
    info = backend.info(model)

    assert await tokens_of(backend, TEXT, model) == await tokens_of(backend, TEXT)
    assert info.shows_tokens
    assert not {Task.TOKENIZE, Task.DETOKENIZE} & set(info.tasks)


async def test_tokens_become_the_text_again(backend: Backend) -> None:
    ids = (await tokens_of(backend, "good film"))["ids"]

    text = await backend.answer("tiny", Task.DETOKENIZE, ids)
    whole = await backend.answer(
        "tiny", Task.DETOKENIZE, ids, parameters=DetokenizeParameters(skip_special_tokens=False)
    )

    assert text == {"text": "good film"}
    assert whole["text"].split() == ["[CLS]", "good", "film", "[SEP]"]


async def test_a_space_that_ends_a_prompt_is_that_of_the_text(backend: Backend) -> None:
    ids = (await tokens_of(backend, "good film", "spaced"))["ids"]

    of_text, of_ids = await backend.ask("spaced", Task.EMBED, ["good film", ids], scope="spaced")
    refused = await refusal(backend, "joined", Task.EMBED, ids)

    assert isinstance(of_text, Done)
    assert isinstance(of_ids, Done)
    assert ids == [4, 5]
    assert of_ids.result == of_text.result
    assert of_ids.tokens + of_ids.known_tokens == of_text.tokens + of_text.known_tokens == 4
    assert (refused.code, "send the text" in refused.detail) == ("bad_token", True)


@pytest.mark.parametrize("model", ["tiny", "prompted"])
@pytest.mark.parametrize("special", [True, False])
async def test_tokens_have_the_vector_of_their_text(
    backend: Backend, model: str, *, special: bool
) -> None:
    ids = (await tokens_of(backend, TEXT, add_special_tokens=special))["ids"]

    outcomes = await backend.ask(model, Task.EMBED, [TEXT, ids], scope=f"{model}{special}")

    of_text, of_ids = outcomes
    assert isinstance(of_text, Done)
    assert isinstance(of_ids, Done)
    assert of_ids.result == of_text.result
    assert [one.tokens + one.known_tokens for one in outcomes if isinstance(one, Done)] == [
        9 + 2 * (model == "prompted")
    ] * 2


async def test_too_many_tokens_are_cut_or_refused_as_texts_are(backend: Backend) -> None:
    ids = (await tokens_of(backend, LONG))["ids"]

    cut, of_text = await backend.ask("tiny", Task.EMBED, [ids, LONG])
    refused = await refusal(backend, "whole", Task.EMBED, ids)
    (unwanted,) = await backend.ask("tiny", Task.EMBED, [ids], truncate=False)

    assert isinstance(cut, Done)
    assert isinstance(of_text, Done)
    assert (cut.result, cut.truncated_from) == (of_text.result, 23)
    assert of_text.truncated_from == 23
    assert isinstance(unwanted, Failed)
    assert refused.code == unwanted.code == "input_too_long"


@pytest.mark.parametrize(
    ("model", "task", "item", "code", "named"),
    [
        ("tiny", Task.EMBED, [1, 30_000], "bad_token", "`30000`"),
        ("tiny", Task.EMBED, [], "empty_input", "no tokens"),
        ("tiny", Task.EMBED, [id_of("[CLS]"), id_of("[SEP]")], "empty_input", "empty"),
        ("tiny", Task.EMBED, [-1], "bad_item", "not valid"),
        ("long", Task.EMBED, [5], "bad_item", "not tokens"),
        ("tiny", Task.DETOKENIZE, [2**31 - 1], "bad_token", "`2147483647`"),
        ("tiny", Task.DETOKENIZE, [], "empty_input", "no tokens"),
        ("tiny", Task.DETOKENIZE, [5] * (MOST + 1), "input_too_long", f"{MOST + 1} tokens"),
        ("tiny", Task.EMBED, [5] * (MOST + 1), "input_too_long", f"at most {MOST}"),
    ],
)
async def test_what_is_no_token_is_refused_by_name(
    backend: Backend, model: str, task: Task, item: Any, code: str, named: str
) -> None:
    found = await refusal(backend, model, task, item)

    assert found.code == code
    assert named in found.detail


@pytest.mark.parametrize("counts_only", [True, False])
async def test_a_text_is_counted_and_shown_to_a_bound(
    backend: Backend, *, counts_only: bool
) -> None:
    parameters = TokenizeParameters(counts_only=counts_only, overlap=0)

    longest, longer = await backend.ask(
        "tiny", Task.TOKENIZE, ["!" * MOST, "!" * (MOST + 1)], parameters=parameters
    )

    assert isinstance(longest, Done)
    assert msgspec.json.decode(longest.result)["count"] == MOST + 2
    assert isinstance(longer, Failed)
    assert (longer.status, longer.code) == (422, "input_too_long")
    assert f"{MOST + 1} characters" in longer.detail


async def test_long_texts_whose_tokens_are_asked_for_have_a_thread_of_their_own(
    backend: Backend,
) -> None:
    await tokens_of(backend, "good " * 1000, counts_only=True)

    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("tokens")]


async def test_tokens_are_shown_while_a_full_queue_refuses_rows(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = backend.call("tiny", Task.EMBED, ["new"], parameters=EmbedParameters())
    for batcher in backend.batchers:
        monkeypatch.setattr(batcher.submissions, "is_full", lambda _: True)

    shown = await tokens_of(backend, TEXT)
    exchange = await backend.exchange(call).run()

    assert shown["count"] == 9
    assert exchange.status == 503
