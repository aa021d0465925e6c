"""Ranking by pairwise comparison: right for a judge that is consistent, and cheap."""

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from sluicegate.backends.algorithms.classify import Classify
from sluicegate.backends.algorithms.tournament import Tournament
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.types import Text
from sluicegate.wire.protocol import InferParameters
from tests.support.fake_models import FakeModel, asking

pytestmark = pytest.mark.anyio


def judge(text: Text) -> list[float]:
    """Call that text better whose number is greater; what comes before a number is the query."""
    assert isinstance(text, tuple)
    first, second = text
    return [float(first.split()[-1]) - float(second), 0.0]


def tournament(*, both_ways: bool = False) -> Tournament:
    below = Classify(model="m", labels=["better", "worse"], function="softmax")
    return Tournament(judge=below, better="better", both_ways=both_ways)


async def rank(
    numbers: list[int], model: FakeModel, top: int | None = None, *, both_ways: bool = False
) -> Any:
    item = {"documents": [str(number) for number in numbers], "query": "larger"}
    parameters = InferParameters(parameters={} if top is None else {"top_n": top})
    return await tournament(both_ways=both_ways).run(item, parameters, asking(m=model))


@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(st.integers(0, 99), min_size=1, max_size=24, unique=True))
async def test_all_are_ranked_with_no_more_comparisons_than_pairs(numbers: list[int]) -> None:
    found = await rank(numbers, FakeModel(judge))

    order = [entry["index"] for entry in found["ranking"]]
    count = len(numbers)
    assert [numbers[index] for index in order] == sorted(numbers, reverse=True)
    assert found["comparisons"] <= count * (count - 1) / 2
    assert found["comparisons"] <= count - 1 + (count - 1) * math.ceil(math.log2(max(2, count)))


async def test_the_best_of_64_take_a_knockout_and_short_replays() -> None:
    model = FakeModel(judge)
    numbers = [(7 * place) % 64 for place in range(64)]

    found = await rank(numbers, model, top=3)

    assert [numbers[entry["index"]] for entry in found["ranking"]] == [63, 62, 61]
    assert found["comparisons"] == model.rows <= 63 + 2 * 6


async def test_both_ways_cancel_a_judge_s_liking_for_the_first() -> None:
    fond = FakeModel(lambda text: [judge(text)[0] + 5.0, 0.0])

    one_way, both = [await rank([1, 2], fond, both_ways=both) for both in (False, True)]

    assert one_way["ranking"][0] == {"index": 0}
    assert both["ranking"][0] == {"index": 1}


@pytest.mark.parametrize(
    ("item", "parameters", "code"),
    [
        ({"documents": []}, {}, "bad_item"),
        ({"documents": ["1"] * 257}, {}, "bad_item"),
        ({"documents": "1"}, {}, "bad_item"),
        ("1", {}, "bad_item"),
        ({"documents": ["1"]}, {"top_n": 0}, "bad_parameter"),
        ({"documents": ["1"]}, {"top": 1}, "bad_parameter"),
    ],
)
async def test_what_is_no_contest_is_refused(
    item: object, parameters: dict[str, Any], code: str
) -> None:
    given = InferParameters(parameters=parameters)

    with pytest.raises(ItemRefused) as caught:
        await tournament().run(item, given, asking(m=FakeModel(judge)))

    assert caught.value.code == code
