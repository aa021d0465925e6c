"""Rows assembled from ids are those that the tokenizer makes of the texts."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library, models, pre_tokenizers, processors

from sluicegate.backends.tokenization.layout import cut_first, cut_longest
from sluicegate.backends.tokenization.tokenizer import Tokenizer
from testing.model_repository import make_tokenizer

pytestmark = pytest.mark.anyio
PAIRS = [
    ("good film", "bad"),
    ("", "bad card"),
    ("paris", ""),
    ("the money is good, " * 5, "the card is bad!"),
    ("card", "about this text " * 6),
    ("the money is good " * 6, "about this text " * 6),
    ("naïve 😀 שלום", "é"),
]


def roberta_like() -> Library:
    """Return one that begins pairs and parts them as RoBERTa does, all of one type."""
    words = {"<s>": 0, "</s>": 1, "<unk>": 2, "good": 3, "bad": 4, "film": 5, "card": 6}
    tokenizer = Library(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return tokenizer


def bare() -> Library:
    """Return one that puts nothing around a text."""
    tokenizer = Library(models.WordLevel({"good": 0, "bad": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.fixture(params=[make_tokenizer, roberta_like, bare], ids=lambda make: make.__name__)
async def library(request: pytest.FixtureRequest) -> Library:
    made: Library = request.param()
    return made


@pytest.fixture
async def tokenizer(library: Library, tmp_path: Path) -> AsyncIterator[Tokenizer]:
    library.save(str(tmp_path / "tokenizer.json"))
    with ThreadPoolExecutor(1) as pool:
        yield Tokenizer(tmp_path / "tokenizer.json", pool=pool)


@pytest.mark.parametrize("pair", PAIRS)
async def test_a_pair_of_ids_is_the_row_of_the_texts(
    library: Library, tokenizer: Tokenizer, pair: tuple[str, str]
) -> None:
    library.no_padding()
    library.no_truncation()
    expected = library.encode(*pair)
    first, second = await tokenizer.ids(list(pair))

    row = tokenizer.layout.pair(first, second)

    assert row.type_ids is not None
    assert (row.ids.tolist(), row.type_ids.tolist()) == (expected.ids, expected.type_ids)


async def test_a_row_of_ids_and_one_of_texts_are_known_as_one(tmp_path: Path) -> None:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    with ThreadPoolExecutor(1) as pool:
        tokenizer = Tokenizer(tmp_path / "tokenizer.json", pool=pool)
        (expected,) = await tokenizer.encode([("good film", "bad")])
        first, second = await tokenizer.ids(["good film", "bad"])

    assert tokenizer.layout.pair(first, second).key == expected.key


async def test_without_token_types_both_texts_of_a_pair_are_of_one(tmp_path: Path) -> None:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    with ThreadPoolExecutor(1) as pool:
        tokenizer = Tokenizer(tmp_path / "tokenizer.json", pool=pool, token_types=False)
        (row,) = await tokenizer.encode([("good film", "bad")])
        first, second = await tokenizer.ids(["good film", "bad"])

    assert row.type_ids is not None
    assert not row.type_ids.any()
    assert tokenizer.layout.pair(first, second).key == row.key


@pytest.mark.parametrize("text", [pair[0] for pair in PAIRS])
async def test_ids_alone_are_the_row_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    (expected,) = await tokenizer.encode([text])
    (ids,) = await tokenizer.ids([text])
    (segment,) = await tokenizer.segments([text])

    assert tokenizer.layout.single(ids).key == expected.key
    assert segment.ids.tolist() == ids.tolist()
    assert len(segment.pieces) == len(ids)


@pytest.mark.parametrize("strategy", ["only_first", "longest_first"])
@pytest.mark.parametrize("most", [9, 10, 15])
@pytest.mark.parametrize("pair", PAIRS)
async def test_pairs_are_cut_as_the_library_cuts(
    library: Library, tokenizer: Tokenizer, pair: tuple[str, str], most: int, strategy: str
) -> None:
    first, second = await tokenizer.ids(list(pair))
    room = most - tokenizer.layout.added_to_pair
    if strategy == "only_first" and len(second) >= room:
        # The library raises; here nothing of the first text is left, and the row may be refused.
        assert not len(cut_first(first, second, room)[0])
        return
    library.no_padding()
    library.enable_truncation(most, strategy=strategy)
    expected = library.encode(*pair)

    cut = cut_first if strategy == "only_first" else cut_longest
    row = tokenizer.layout.pair(*cut(first, second, room))

    assert row.ids.tolist() == expected.ids
