"""Zero-shot by embedding: the arithmetic, against vectors chosen by hand."""

import math

import pytest

from sluicegate.backends.algorithms.zero_shot import Choose, ZeroShot
from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.wire.protocol import ChooseItem, ChooseParameters, ZeroShotParameters
from tests.support.fake_models import FakeModel, asking

pytestmark = pytest.mark.anyio


def ask(vectors: FakeModel) -> AlgorithmContext:
    return asking(m=vectors)


def told(**vectors: list[float]) -> FakeModel:
    """Return a model whose texts have known vectors."""
    return FakeModel(lambda text: vectors[str(text)])


def scores(answer: dict[str, list[dict[str, float | str]]]) -> dict[str, float]:
    return {str(label["label"]): float(label["score"]) for label in answer["labels"]}


# The template alone points along the third axis; a label's own part is what is left without it.
VECTORS = {
    "text": [1.0, 0.0, 0.0],
    "of ": [0.0, 0.0, 2.0],
    "of near": [0.03, 0.04, 5.0],
    "of far": [0.0, 1.0, 9.0],
    "of nothing": [0.0, 0.0, 3.0],
    "not ": [0.0, 0.0, 1.0],
    "not near": [0.0, 1.0, 1.0],
    "not far": [1.0, 0.0, 1.0],
}


async def test_what_the_template_says_by_itself_is_taken_out() -> None:
    parameters = ZeroShotParameters(labels=["near", "far"], hypothesis_template="of {}")

    answer = await ZeroShot(model="m").run("text", parameters, ask(told(**VECTORS)))

    # cosines 0.6 and 0, over the temperature
    expected = 1 / (1 + math.exp(-0.6 / 0.05))
    assert scores(answer)["near"] == pytest.approx(expected, abs=1e-5)


async def test_labels_of_their_own_are_judged_each_alone() -> None:
    parameters = ZeroShotParameters(
        labels=["near", "far"], hypothesis_template="of {}", multi_label=True
    )

    answer = await ZeroShot(model="m").run("text", parameters, ask(told(**VECTORS)))

    assert scores(answer)["near"] == pytest.approx(1 / (1 + math.exp(-10)), abs=1e-5)
    assert scores(answer)["far"] == pytest.approx(1 / (1 + math.exp(2)), abs=1e-5)


async def test_a_label_that_adds_nothing_to_the_template_has_no_nearness() -> None:
    parameters = ZeroShotParameters(
        labels=["nothing", "far"], hypothesis_template="of {}", multi_label=False
    )

    answer = await ZeroShot(model="m").run("text", parameters, ask(told(**VECTORS)))

    assert scores(answer) == {"nothing": 0.5, "far": 0.5}


async def test_all_rows_of_an_item_are_asked_at_once() -> None:
    vectors = told(**VECTORS)
    parameters = ZeroShotParameters(labels=["near", "far"], hypothesis_template="of {}")

    await ZeroShot(model="m").run("text", parameters, ask(vectors))

    assert vectors.questions == [["text", "of near", "of far", "of "]]


async def test_a_choice_is_the_nearest_text() -> None:
    vectors = told(text=[1.0, 0.0], near=[3.0, 4.0], far=[0.0, 1.0])
    item = ChooseItem(prompt="text", choices=["far", "near"])

    answer = await Choose(model="m").run(item, ChooseParameters(), ask(vectors))

    assert answer["choice"] == 1
    assert answer["scores"][1] == pytest.approx(1 / (1 + math.exp(-12)), abs=1e-5)


async def test_a_set_of_labels_is_asked_once_for_each_scope() -> None:
    vectors = told(**VECTORS)
    parameters = ZeroShotParameters(labels=["near", "far"], hypothesis_template="of {}")
    algorithm = ZeroShot(model="m")

    answers = [await algorithm.run("text", parameters, ask(vectors)) for _ in range(2)]
    stranger = AlgorithmContext({"m": vectors}, RowCaller(scope="other", deadline=math.inf))
    await algorithm.run("text", parameters, stranger)

    assert answers[0] == answers[1]
    assert list(map(len, vectors.questions)) == [4, 1, 4]


async def test_each_order_of_labels_and_template_has_its_scores() -> None:
    vectors, algorithm = told(**VECTORS), ZeroShot(model="m")

    near, far, of_another_template = [
        scores(
            await algorithm.run(
                "text",
                ZeroShotParameters(labels=labels, hypothesis_template=template),
                ask(vectors),
            )
        )
        for labels, template in (
            (["near", "far"], "of {}"),
            (["far", "near"], "of {}"),
            (["near", "far"], "not {}"),
        )
    ]

    assert near == pytest.approx(far)
    assert near["near"] > 0.9
    assert of_another_template["near"] < 0.1
