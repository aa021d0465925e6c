"""Grouping pieces into entities, as Hugging Face's pipeline does."""

from itertools import pairwise

import numpy as np
import pytest
from typing_extensions import override

from sluicegate.backends.algorithms.entities import (
    Entities,
    TextEntity,
    find_entities,
    without_overlaps,
)
from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.types import FloatArray, TokenOffsets
from sluicegate.wire.protocol import Aggregation, EntitiesParameters
from tests.support.fake_models import FakeModel, asking
from tests.support.loop_turns import longest_hold

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


class TokenModel(FakeModel):
    """Gives every text the same pieces."""

    def __init__(self, pieces: list[TokenOffsets], lines: FloatArray) -> None:
        super().__init__(lambda _: [])
        self._answer = pieces, lines

    @override
    async def token_vectors(
        self, text: str, caller: RowCaller
    ) -> tuple[list[TokenOffsets], FloatArray]:
        return self._answer


def spans(*places: tuple[int, int]) -> list[TextEntity]:
    return [TextEntity(label="X", score=1.0, start=start, end=end) for start, end in places]


@pytest.mark.parametrize(
    ("found", "apart"),
    [
        ([(0, 3), (3, 5)], [(0, 3), (3, 5)]),
        ([(3, 5), (4, 5)], [(3, 5)]),
        ([(0, 1), (0, 1), (0, 1), (1, 2)], [(0, 1), (1, 2)]),
        ([(0, 4), (2, 6), (5, 8)], [(0, 4), (4, 6), (6, 8)]),
        ([(0, 4), (4, 4), (3, 3)], [(0, 4), (4, 4)]),
    ],
)
def test_entities_share_no_character(
    found: list[tuple[int, int]], apart: list[tuple[int, int]]
) -> None:
    assert [(e.start, e.end) for e in without_overlaps(spans(*found))] == apart


@pytest.mark.anyio
@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
async def test_an_accent_apart_from_its_letter_is_in_one_entity(aggregation: Aggregation) -> None:
    text = "cafe\u0301 nai\u0308ve"
    letters = [piece(place, place + 1) for place, letter in enumerate(text) if letter != " "]
    lines = scores(*[((1, 3)[number % 2], 0.9) for number in range(len(letters))])
    algorithm = Entities(model="m", labels=LABELS, function="none")

    answer = await algorithm.run(
        text, EntitiesParameters(aggregation=aggregation), asking(m=TokenModel(letters, lines))
    )

    places = [(e["start"], e["end"]) for e in answer["entities"]]
    assert ((3, 4) if aggregation == "none" else (3, 5)) in places
    assert all(one[1] <= other[0] for one, other in pairwise(places))


@pytest.mark.anyio
async def test_a_long_text_does_not_hold_the_event_loop() -> None:
    pieces = [piece(place, place + 1) for place in range(20_000)]
    lines = scores(*[(number % len(LABELS), 0.9) for number in range(len(pieces))])
    model, parameters = TokenModel(pieces, lines), EntitiesParameters(aggregation="average")
    algorithm = Entities(model="m", labels=LABELS, function="softmax")

    hold = await longest_hold(algorithm.run("a" * 20_000, parameters, asking(m=model)))

    assert hold < 0.5
