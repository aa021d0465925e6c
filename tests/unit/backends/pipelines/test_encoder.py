"""What of a text an encoder reads, and what it refuses."""

import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from sluicegate.backends.batching.batcher import Batcher
from sluicegate.backends.batching.coalescing import RowCache, RowCaller, RowCoalescer
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.encoder import Encoder
from sluicegate.backends.pipelines.windows import Windows
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.tokenization.tokenizer import Tokenizer
from sluicegate.backends.types import Encoding, Text
from testing.model_repository import make_tokenizer
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio
MAX_TOKENS = 8
# An encoder of so many tokens reads no more than this of a text.
CHARACTERS = 100 * MAX_TOKENS


class WatchedTokenizer(Tokenizer):
    """Notes how many characters it is given."""

    def __init__(self, path: Path, pool: ThreadPoolExecutor, tokenized: list[int]) -> None:
        super().__init__(path, pool=pool, truncate_to=MAX_TOKENS)
        self._tokenized = tokenized

    @override
    async def encode(self, texts: Sequence[Any]) -> list[Encoding]:
        self._tokenized += [len(t) if isinstance(t, str) else sum(map(len, t)) for t in texts]
        return await super().encode(texts)


@asynccontextmanager
async def truncating(folder: Path, *, prompt: str = "") -> AsyncIterator[tuple[Encoder, list[int]]]:
    """Open an encoder that truncates; the list is of the characters that were tokenized."""
    tokenized: list[int] = []
    path = folder / "tokenizer.json"
    make_tokenizer().save(str(path))
    batcher = Batcher(
        name="tiny",
        executor=DummyExecutor(),
        settings=BackendSettings(),
        clock=time.monotonic,
        tracing=NO_TRACING,
    )
    with ThreadPoolExecutor(1) as pool:
        async with batcher:
            encoder = Encoder(name="tiny", max_tokens=MAX_TOKENS, truncate=True, prompt=prompt)
            encoder.open(
                tokenizer=WatchedTokenizer(path, pool, tokenized),
                rows=RowCoalescer(digest="d", cache=RowCache(max_bytes=10**6), batcher=batcher),
            )
            yield encoder, tokenized


def caller() -> RowCaller:
    return RowCaller(scope="tenant", deadline=time.monotonic() + 30.0)


@pytest.mark.parametrize(
    ("long", "short"),
    [
        ("good bad film money card is " * 50_000, "good bad film money card is good bad"),
        (("good", "the film " * 50_000), ("good", "the film " * 8)),
        (("the film " * 50_000, "is bad " * 50_000), ("the film " * 8, "is bad " * 8)),
    ],
)
async def test_a_text_without_end_is_read_as_far_as_the_model_reads(
    tmp_path: Path, long: Text, short: Text
) -> None:
    async with truncating(tmp_path) as (encoder, tokenized):
        whole, part = await encoder.vectors([long, short], caller())

        assert whole.tolist() == part.tolist()
        assert max(tokenized) <= 2 * CHARACTERS


@pytest.mark.parametrize("filling", [" ", "good" + " " * 10**6, "good " + "x" * 10**6 + " "])
async def test_words_far_beyond_what_is_no_word_are_not_looked_for(
    tmp_path: Path, filling: str
) -> None:
    async with truncating(tmp_path) as (encoder, tokenized):
        with pytest.raises(ItemRefused) as caught:
            await encoder.vectors([filling + " " * 10**6 + "film"], caller())

        assert caught.value.code == "input_too_long"
        assert max(tokenized) <= CHARACTERS


async def test_a_prompt_goes_before_each_text_unless_another_is_given(tmp_path: Path) -> None:
    async with truncating(tmp_path, prompt="about ") as (encoder, _):
        own, other = await encoder.vectors(["film"], caller()), ["bad "]
        others = await encoder.vectors(["film"], caller(), other)
    async with truncating(tmp_path) as (plain, _):
        expected = await plain.vectors(["about film", "bad film"], caller())

    assert [own[0].tolist(), others[0].tolist()] == expected.tolist()


async def test_a_prompt_is_in_every_window_of_a_long_text(tmp_path: Path) -> None:
    async with truncating(tmp_path, prompt="about ") as (encoder, _):
        windows = await encoder.windows("film " * MAX_TOKENS, caller(), Windows(overlap=0))
    room = MAX_TOKENS - len(["[CLS]", "about", "[SEP]"])
    async with truncating(tmp_path) as (plain, _):
        expected = await plain.vectors(["about " + "film " * room], caller())

    assert len(windows) == -(-MAX_TOKENS // room)
    assert windows[0].tolist() == expected[0].tolist()


async def test_a_prompt_is_counted_where_only_the_first_window_is_read(tmp_path: Path) -> None:
    asker = caller()
    async with truncating(tmp_path, prompt="about ") as (encoder, _):
        await encoder.windows("film " * MAX_TOKENS, asker, Windows(overlap=0, combine="first"))

    assert asker.truncated_from == MAX_TOKENS + len(["[CLS]", "about", "[SEP]"])


async def test_a_prompt_leaves_less_room_for_the_window_of_a_pair(tmp_path: Path) -> None:
    async with truncating(tmp_path, prompt="about ") as (encoder, _):
        pairs = await encoder.pair_windows(
            "film " * MAX_TOKENS, ["bad"], caller(), Windows(overlap=0), text_first=True
        )
    room = MAX_TOKENS - len(["[CLS]", "about", "[SEP]", "bad", "[SEP]"])
    async with truncating(tmp_path) as (plain, _):
        expected = await plain.vectors([("about " + "film " * room, "bad")], caller())

    assert len(pairs) == -(-MAX_TOKENS // room)
    assert pairs[0].tolist() == expected[0].tolist()


async def test_an_item_reads_the_same_windows_once(tmp_path: Path) -> None:
    """Heads of one encoder ask for them in turn; each is charged for them."""
    text, asker = "film " * MAX_TOKENS, caller()
    async with truncating(tmp_path) as (encoder, _):
        first = await encoder.windows(text, asker, Windows(overlap=0))
        again = await encoder.windows(text, asker, Windows(overlap=0))
        other = await encoder.windows(text, asker, Windows(overlap=1))

    assert again is first
    assert other is not first
    assert (len(first), asker.rows, asker.cached) == (2, 3, 3)
    assert asker.input_tokens == asker.tokens + 2 * MAX_TOKENS + 2 * len(["[CLS]", "[SEP]"])


async def test_an_item_that_reads_texts_in_turn_reads_each_once(tmp_path: Path) -> None:
    """Heads of a guard read several readings of a text at the same time."""
    asker, windows = caller(), Windows(overlap=0)
    async with truncating(tmp_path) as (encoder, _):
        first = [await encoder.windows(text, asker, windows) for text in ("film", "bad")]
        again = [await encoder.windows(text, asker, windows) for text in ("film", "bad")]

    assert [one is other for one, other in zip(first, again, strict=True)] == [True, True]
