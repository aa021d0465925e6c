"""Grouping pieces into entities, as Hugging Face's pipeline does."""

import numpy as np
import pytest

from backends.algorithms.entities import find_entities
from backends.protocol import Aggregation
from backends.types import FloatArray, TokenOffsets

LABELS = ["O", "B-PER", "I-PER", "B-LOC"]


def piece(start: int, end: int, *, continues: bool = False, special: bool = False) -> TokenOffsets:
    return TokenOffsets(start=start, end=end, special=special, continues_word=continues)


def scores(*best: tuple[int, float]) -> FloatArray:
    """Give each piece one label; the rest of its score goes to the others."""
    lines = [[(1 - s) / 3] * 4 for _, s in best]
    for line, (label, score) in zip(lines, best, strict=True):
        line[label] = score
    return np.array(lines, dtype=np.float32)


# "Ada Love##lace in Paris"; special pieces at both ends.
PIECES = [
    piece(0, 0, special=True),
    piece(0, 3),
    piece(4, 8),
    piece(8, 12, continues=True),
    piece(13, 15),
    piece(16, 21),
    piece(0, 0, special=True),
]
SCORES = scores((1, 1.0), (1, 0.9), (2, 0.8), (1, 0.6), (0, 0.9), (3, 0.7), (1, 1.0))


def found(aggregation: Aggregation) -> list[tuple[str, int, int]]:
    entities = find_entities(PIECES, SCORES, LABELS, aggregation)
    return [(m.label, m.start, m.end) for m in entities]


def test_none_shows_every_piece_with_its_whole_label() -> None:
    assert found("none") == [
        ("B-PER", 0, 3),
        ("I-PER", 4, 8),
        ("B-PER", 8, 12),
        ("B-LOC", 16, 21),
    ]


def test_simple_groups_neighbours_and_may_cut_a_word() -> None:
    assert found("simple") == [("PER", 0, 8), ("PER", 8, 12), ("LOC", 16, 21)]


@pytest.mark.parametrize("aggregation", ["first", "max"])
def test_a_word_agrees_on_one_label(aggregation: Aggregation) -> None:
    assert found(aggregation) == [("PER", 0, 12), ("LOC", 16, 21)]


def test_average_weighs_all_pieces_of_a_word() -> None:
    lines = scores((0, 0.4), (1, 0.9))
    pieces = [piece(0, 2), piece(2, 4, continues=True)]

    (entity,) = find_entities(pieces, lines, LABELS, "average")

    assert (entity.label, entity.start, entity.end) == ("PER", 0, 4)
    assert entity.score == pytest.approx((0.2 + 0.9) / 2, abs=1e-6)


def test_first_and_max_differ_where_the_second_piece_is_surer() -> None:
    lines = scores((0, 0.4), (1, 0.9))
    pieces = [piece(0, 2), piece(2, 4, continues=True)]

    assert find_entities(pieces, lines, LABELS, "first") == []
    assert find_entities(pieces, lines, LABELS, "max")[0].score == pytest.approx(0.9)


def test_the_score_of_a_group_is_the_mean_of_its_members() -> None:
    entity = find_entities(PIECES, SCORES, LABELS, "simple")[0]

    assert entity.score == pytest.approx(0.85, abs=1e-6)


def test_a_text_of_no_entities_has_none() -> None:
    assert find_entities([piece(0, 3)], scores((0, 0.9)), LABELS, "simple") == []


def test_what_lies_outside_parts_entities() -> None:
    lines = scores((2, 0.9), (0, 0.9), (2, 0.9))
    pieces = [piece(0, 1), piece(2, 3), piece(4, 5)]

    entities = find_entities(pieces, lines, LABELS, "simple")

    assert [(m.start, m.end) for m in entities] == [(0, 1), (4, 5)]
