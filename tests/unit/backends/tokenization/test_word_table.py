"""Texts whose words are looked up have the tokens that the tokenizer gives them."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from sluicegate.backends.tokenization.tokenizer import Tokenizer as BackendTokenizer
from sluicegate.backends.tokenization.word_table import WordTable, read_word_table
from sluicegate.backends.types import TokenIds
from testing.model_repository import WORDS, make_tokenizer

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def cased() -> Tokenizer:
    """Return a tokenizer that keeps case, has words that it would split, and added tokens."""
    pieces = ["[UNK]", "Good", "good", "bad", "film", "it's", "a-b", *_LETTERS, *".,!?'-"]
    pieces += [f"##{letter}" for letter in _LETTERS]
    made = Tokenizer(
        models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_tokens([AddedToken("film noir", normalized=True), AddedToken("<x>", normalized=False)])
    return made


def uncased() -> Tokenizer:
    """Return the tokenizer of the tests' repositories, without what pads and cuts."""
    made = make_tokenizer()
    made.no_padding()
    made.no_truncation()
    return made


TOKENIZERS = {"cased": cased(), "uncased": uncased()}


def table(made: Tokenizer) -> WordTable:
    def read(words: list[str]) -> list[list[int]]:
        return [each.ids for each in made.encode_batch(words, add_special_tokens=False)]

    found = read_word_table(made.to_str(), read)
    assert found is not None
    return found


TABLES = {name: table(made) for name, made in TOKENIZERS.items()}
words = st.sampled_from([*WORDS, "Good", "goods", "it's", "a-b", "film noir", "<x>", "[CLS]"])
characters = st.characters(max_codepoint=255) | st.characters(exclude_categories=["Cs"])
texts = st.lists(words | st.text(characters, max_size=8), max_size=12)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(parts=st.lists(texts, max_size=4), space=st.sampled_from(" \n\N{NO-BREAK SPACE}"))
def test_what_is_found_is_what_the_tokenizer_says(
    name: str, parts: list[list[str]], space: str
) -> None:
    texts = [space.join(each) for each in parts]

    found = TABLES[name].find(texts)

    encodings = TOKENIZERS[name].encode_batch(texts, add_special_tokens=False)
    for one, encoding in zip(found, encodings, strict=True):
        assert one is None or one == encoding.ids


def test_plain_texts_are_found() -> None:
    texts = ["good film", "Good  film!", "Is this the good film, about money?", "good film goods!"]

    assert None not in TABLES["uncased"].find(texts)


def test_texts_with_a_few_other_characters_are_found() -> None:
    texts = ["good film\nbad film", "good film, good caf\xe9: \N{EN DASH} good film, bad film"]

    assert None not in TABLES["uncased"].find(texts)


@pytest.mark.parametrize("text", ["good f\xedlm noir", "good film\nnoir"])
def test_a_text_that_may_become_an_added_token_is_read_by_the_tokenizer(text: str) -> None:
    made = uncased()
    made.normalizer = normalizers.BertNormalizer()
    made.add_tokens([AddedToken("film noir", normalized=True)])

    found = table(made).find([text])

    read = made.encode(text, add_special_tokens=False).ids
    assert read[-1] == made.token_to_id("film noir")
    assert found == [None]


def test_a_longer_word_than_the_tokenizer_reads_is_unknown() -> None:
    long = "a" * 101
    made = Tokenizer(models.WordPiece({"[UNK]": 0, long: 1, "b": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    assert table(made).find([f"b b b {long}"]) == [[2, 2, 2, 0]]


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": pre_tokenizers.Whitespace()},
        {"normalizer": normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()])},
        {"model": models.BPE()},
    ],
)
def test_other_tokenizers_have_no_table(change: dict[str, object]) -> None:
    made = uncased()
    for part, value in change.items():
        setattr(made, part, value)

    assert read_word_table(made.to_str(), lambda _: []) is None


@pytest.mark.parametrize("text", ["good film zebra " * 9, "good " * 900])
def test_a_text_is_read_by_the_tokenizer_where_that_is_quicker(text: str) -> None:
    """It has many words of several tokens, or is long."""
    made, read = uncased(), list[str]()

    def read_words(words: list[str]) -> list[list[int]]:
        read.extend(words)
        return [each.ids for each in made.encode_batch(words, add_special_tokens=False)]

    found = read_word_table(made.to_str(), read_words)

    assert found is not None
    assert found.find([text]) == [None]
    assert not read


def test_words_that_come_again_are_read_once() -> None:
    made, calls = uncased(), list[list[str]]()

    def read_words(words: list[str]) -> list[list[int]]:
        calls.append(words)
        return [each.ids for each in made.encode_batch(words, add_special_tokens=False)]

    found = read_word_table(made.to_str(), read_words)

    assert found is not None
    assert None not in found.find(
        ["good bad film zebra " * 10, "good", "good bad film goods zebra film good bad"]
    )
    assert calls == [["zebra", "goods"]]


@pytest.mark.parametrize(("token", "text"), [("Café", "good cafe"), ("film\n", "good film bad")])
def test_an_added_token_that_normalization_changes_leaves_no_table(token: str, text: str) -> None:
    made = uncased()
    made.normalizer = normalizers.BertNormalizer()
    made.add_tokens([AddedToken(token, normalized=True)])

    found = read_word_table(made.to_str(), lambda _: [])

    read = made.encode(text, add_special_tokens=False).ids
    assert read[1] == made.token_to_id(token)
    assert found is None


def test_many_added_tokens_leave_no_table() -> None:
    document = json.loads(uncased().to_str())
    token = {"content": "<x>", "id": 0, "special": True, "normalized": False}
    document["added_tokens"] = [token] * 33

    assert read_word_table(json.dumps(document), lambda _: []) is None


def test_rows_are_equal_with_and_without_the_table(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    uncased().save(str(path))
    texts = ["good film", "this is text about money " * 4, "", "good [SEP] film", "Bad, bad!"]
    texts += ["good film is bad " * 3 + "zebra", "good " * 14, "good " * 15]
    with ThreadPoolExecutor(1) as pool:
        tokenizer = BackendTokenizer(path, pool=pool, truncate_to=16)
        found = tokenizer.encode_now(texts)
    plain = tokenizers.Tokenizer.from_file(str(path))
    plain.enable_truncation(16)

    assert [each.ids.tolist() for each in found] == [each.ids for each in plain.encode_batch(texts)]
    lengths = [len(each.ids) for each in uncased().encode_batch(texts)]
    assert [each.truncated_from for each in found] == [n if n > 16 else 0 for n in lengths]


def test_many_texts_are_looked_up_a_few_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    uncased().save(str(path))
    texts = ["good film zebra bad " * 200 + "film " * n for n in range(20)]
    with ThreadPoolExecutor(1) as pool:
        tokenizer = BackendTokenizer(path, pool=pool)

        found = tokenizer.encode_now([*texts, TokenIds((1, 2))])

    assert tokenizer.portions == 3  # the backend reports progress after each of them
    expected = [each.ids for each in uncased().encode_batch(texts)]
    assert [each.ids.tolist() for each in found[:-1]] == expected


@pytest.mark.anyio
async def test_ids_of_texts_are_looked_up_too(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    uncased().save(str(path))
    texts = ["good film", "zebra zebra", "", "good film, bad film"]
    with ThreadPoolExecutor(1) as pool:
        tokenizer = BackendTokenizer(path, pool=pool)

        found = await tokenizer.ids(texts)

    expected = [each.ids for each in uncased().encode_batch(texts, add_special_tokens=False)]
    assert [each.tolist() for each in found] == expected
