"""Texts to ids, off the loop and together."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers
from typing_extensions import ParamSpec, TypeVar, override

from sluicegate.backends.errors import ModelFailed, ModelProblem
from sluicegate.backends.tokenization.tokenizer import Tokenizer
from sluicegate.backends.types import Text
from testing.model_repository import id_of, make_tokenizer

pytestmark = pytest.mark.anyio
P = ParamSpec("P")
T = TypeVar("T")


class RecordingPool(ThreadPoolExecutor):
    """Counts the jobs it gets."""

    def __init__(self) -> None:
        super().__init__(2)
        self.jobs = 0

    @override
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        self.jobs += 1
        return super().submit(fn, *args, **kwargs)


@pytest.fixture
def pool() -> Iterator[RecordingPool]:
    with RecordingPool() as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    make_tokenizer().save(str(path))
    return path


async def test_a_file_s_own_padding_and_truncation_are_off(file: Path, pool: RecordingPool) -> None:
    tokenizer = Tokenizer(file, pool=pool)

    short, long = await tokenizer.encode(["good", "good bad film money card is the about"])

    assert short.ids.tolist() == [id_of("[CLS]"), id_of("good"), id_of("[SEP]")]
    assert len(long.ids) == 10


async def test_a_model_may_ask_for_truncation(file: Path, pool: RecordingPool) -> None:
    tokenizer = Tokenizer(file, pool=pool, truncate_to=4)

    (encoding,) = await tokenizer.encode(["good bad film money"])

    assert encoding.ids.tolist() == [
        id_of("[CLS]"),
        id_of("good"),
        id_of("bad"),
        id_of("[SEP]"),
    ]


async def test_long_texts_of_many_callers_travel_as_one_job(
    file: Path, pool: RecordingPool
) -> None:
    tokenizer = Tokenizer(file, pool=pool)

    answers = await tokenizer.encode_each([["good " * 200]] * 20)

    assert pool.jobs == 1
    assert len({answer[0].key for answer in answers if isinstance(answer, list)}) == 1


@pytest.mark.parametrize("are_pairs", [False, True])
async def test_texts_that_are_read_a_few_at_a_time_are_answered_in_order(
    file: Path, pool: RecordingPool, *, are_pairs: bool
) -> None:
    tokenizer = Tokenizer(file, pool=pool)
    texts = ["good-" * 4000 + "bad-" * number for number in range(8)]
    asked: list[Text] = [("film", text) if are_pairs else text for text in texts]

    answers = await tokenizer.encode(asked)
    ids = await tokenizer.ids(texts)

    assert [len(one.ids) - len(answers[0].ids) for one in answers] == [*range(0, 16, 2)]
    assert [len(one) - len(ids[0]) for one in ids] == [*range(0, 16, 2)]


def test_texts_of_many_tokens_do_not_take_memory_all_at_once(file: Path) -> None:
    script = f"""
from pathlib import Path
from sluicegate.backends.tokenization.tokenizer import Tokenizer

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024

tokenizer = Tokenizer(Path({str(file)!r}), pool=None, truncate_to=64)
before = peak()
assert tokenizer.encode_now(["-" * 20_000] * 50)[0].truncated_from == 20_002
print(peak() - before)
"""

    grown = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout

    assert int(grown) < 128  # MiB; all of them together take 440


async def test_a_pair_s_second_text_has_its_own_type(file: Path, pool: RecordingPool) -> None:
    tokenizer = Tokenizer(file, pool=pool)

    pair, joined = await tokenizer.encode([("good", "film"), "good[SEP]film"])

    assert pair.type_ids is not None
    assert pair.type_ids.tolist() == [0, 0, 0, 1, 1]
    assert pair.key != joined.key


async def test_places_count_characters_of_the_original(file: Path, pool: RecordingPool) -> None:
    text = "👍🏽 the  Paris, good-film"
    tokenizer = Tokenizer(file, pool=pool)

    (segment,) = await tokenizer.segments([text])

    words = [text[piece.start : piece.end] for piece in segment.pieces if not piece.special]
    assert words == ["👍🏽", "the", "Paris", ",", "good", "-", "film"]


async def test_pieces_of_a_word_say_that_they_continue_it(file: Path, pool: RecordingPool) -> None:
    tokenizer = Tokenizer(file, pool=pool)

    (segment,) = await tokenizer.segments(["goods 漢"])

    real = [piece for piece in segment.pieces if not piece.special]
    assert [piece.continues_word for piece in real] == [False, True, False]


async def test_what_a_unigram_model_does_not_know_begins_a_word(
    tmp_path: Path, pool: RecordingPool
) -> None:
    path = tmp_path / "tokenizer.json"
    vocabulary = [("<unk>", 0.0), ("\N{LOWER ONE EIGHTH BLOCK}", -1.0), ("g", -2.0), ("o", -2.0)]
    unigram = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=0))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.save(str(path))

    (segment,) = await Tokenizer(path, pool=pool).segments(["go漢o"])

    found = [(piece.start, piece.continues_word) for piece in segment.pieces]
    assert found[-2:] == [(2, False), (3, True)]


async def test_only_what_every_text_gets_is_nothing(file: Path, pool: RecordingPool) -> None:
    tokenizer = Tokenizer(file, pool=pool)

    nothing, something, pair, half = await tokenizer.encode(["", "good", ("", ""), ("", "good")])

    assert tokenizer.is_empty(nothing)
    assert tokenizer.is_empty(pair)
    assert not tokenizer.is_empty(something)
    assert not tokenizer.is_empty(half)


async def test_a_text_the_tokenizer_chokes_on_fails_alone(file: Path, pool: RecordingPool) -> None:
    tokenizer = Tokenizer(file, pool=pool)
    no_text = "\ud800"

    good, bad = await tokenizer.encode_each([["good"], [no_text]])

    assert isinstance(bad, ModelFailed)
    assert isinstance(good, list)


@pytest.mark.parametrize(("words", "on_loop"), [(1, True), (500, False)])
async def test_only_little_text_is_tokenized_on_the_loop(
    file: Path, pool: RecordingPool, words: int, *, on_loop: bool
) -> None:
    threads = set()
    tokenizer = Tokenizer(file, pool=pool)
    original = tokenizer.encode_now

    def spy(texts: list[Text]) -> object:
        threads.add(threading.current_thread())
        return original(texts)

    tokenizer.encode_now = spy  # type: ignore[method-assign, assignment]
    await tokenizer.encode(["good " * words])

    assert (threads == {threading.main_thread()}) is on_loop


async def test_many_short_texts_at_once_do_not_hold_the_loop_up(
    file: Path, pool: RecordingPool
) -> None:
    tokenizer = Tokenizer(file, pool=pool)

    async def ask() -> None:
        await tokenizer.ids([f"about {number}" for number in range(40)])

    await asyncio.gather(*[ask() for _ in range(50)])
    at_once = pool.jobs
    await ask()

    assert at_once >= 30
    assert pool.jobs == at_once


@pytest.mark.parametrize("split", [False, True])
def test_a_special_token_in_a_text_is_text_where_that_is_asked_for(
    pool: RecordingPool, *, split: bool
) -> None:
    path = Path(__file__).parents[3] / "parity" / "data" / "wordpiece-tokenizer.json"
    tokenizer = Tokenizer(path, pool=pool, split_special_tokens=split)

    (encoding,) = tokenizer.encode_now(["a fine [SEP] film"])

    separator = tokenizers.Tokenizer.from_file(str(path)).token_to_id("[SEP]")
    assert (encoding.ids == separator).sum() == (1 if split else 2)


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, pool: RecordingPool) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")

    with pytest.raises(ModelProblem, match=r"tokenizer\.json: "):
        Tokenizer(path, pool=pool)
