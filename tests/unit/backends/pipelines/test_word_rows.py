"""Windows of words cover every span of a text."""

import itertools
import random

import pytest

from sluicegate.backends.pipelines.word_rows import WordFormat, owned_words, word_spans


def form(*, width: int = 3, words: int = 20) -> WordFormat:
    return WordFormat(
        label_token="<<ENT>>",
        text_token="<<SEP>>",
        label_place="token",
        word_place="first",
        max_width=width,
        max_words=words,
    )


@pytest.mark.parametrize("seed", range(20))
def test_every_short_span_is_inside_the_window_that_owns_its_first_word(seed: int) -> None:
    drawn = random.Random(seed)
    lengths = [drawn.choice([1, 1, 1, 2, 3]) for _ in range(drawn.randint(1, 200))]

    spans = word_spans(lengths, room=60, form=form(), most=64)

    owned = owned_words(spans)
    assert [begin for begin, _ in owned] == [0, *(upto for _, upto in owned[:-1])]
    assert owned[-1][1] == len(lengths)
    assert all(sum(lengths[start:end]) <= 60 and end - start <= 20 for start, end in spans)
    for (start, end), (begin, upto) in zip(spans, owned, strict=True):
        assert start <= begin < upto <= end
        assert upto + 2 <= end or end == len(lengths)


def test_words_as_long_as_a_window_do_not_stop_the_windows() -> None:
    spans = word_spans([60] * 10, room=60, form=form(), most=64)

    assert spans == [(place, place + 1) for place in range(10)]


def test_windows_end_when_there_are_too_many() -> None:
    spans = word_spans([1] * 10_000, room=60, form=form(), most=5)

    assert len(spans) == 6
    assert all(first[1] > second[0] for first, second in itertools.pairwise(spans))
