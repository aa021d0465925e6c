"""Zero-shot by embedding: the arithmetic, against vectors chosen by hand."""

import math
import time
from collections.abc import Sequence

import numpy as np
import pytest

from backends.algorithms.zero_shot import Choose, ZeroShot
from backends.batching.shared import Caller
from backends.pipelines.ask import Ask
from backends.protocol import ChooseItem, ChooseParameters, ZeroShotParameters
from backends.types import FloatArray, Piece, Text

pytestmark = pytest.mark.anyio


class Vectors:
    """A pipeline whose texts have known vectors."""

    def __init__(self, **vectors: list[float]) -> None:
        self._vectors = vectors
        self.asked: list[Text] = []

    async def vectors(self, texts: Sequence[Text], caller: Caller) -> FloatArray:
        self.asked += texts
        return np.array([self._vectors[str(text)] for text in texts], dtype=np.float32)

    async def token_vectors(self, text: str, caller: Caller) -> tuple[list[Piece], FloatArray]:
        raise NotImplementedError


def ask(vectors: Vectors) -> Ask:
    return Ask({"m": vectors}, Caller(scope="t", deadline=time.monotonic() + 9))


def scores(answer: dict[str, list[dict[str, float | str]]]) -> dict[str, float]:
    return {str(label["label"]): float(label["score"]) for label in answer["labels"]}


# The template alone points along the third axis; a label's own part is what is left without it.
VECTORS = {
    "text": [1.0, 0.0, 0.0],
    "of ": [0.0, 0.0, 2.0],
    "of near": [0.03, 0.04, 5.0],
    "of far": [0.0, 1.0, 9.0],
    "of nothing": [0.0, 0.0, 3.0],
}


async def test_what_the_template_says_by_itself_is_taken_out() -> None:
    parameters = ZeroShotParameters(labels=["near", "far"], hypothesis_template="of {}")

    answer = await ZeroShot(model="m").run("text", parameters, ask(Vectors(**VECTORS)))

    # cosines 0.6 and 0, over the temperature
    expected = 1 / (1 + math.exp(-0.6 / 0.05))
    assert scores(answer)["near"] == pytest.approx(expected, abs=1e-5)


async def test_labels_of_their_own_are_judged_each_alone() -> None:
    parameters = ZeroShotParameters(
        labels=["near", "far"], hypothesis_template="of {}", multi_label=True
    )

    answer = await ZeroShot(model="m").run("text", parameters, ask(Vectors(**VECTORS)))

    assert scores(answer)["near"] == pytest.approx(1 / (1 + math.exp(-10)), abs=1e-5)
    assert scores(answer)["far"] == pytest.approx(1 / (1 + math.exp(2)), abs=1e-5)


async def test_a_label_that_adds_nothing_to_the_template_has_no_nearness() -> None:
    parameters = ZeroShotParameters(
        labels=["nothing", "far"], hypothesis_template="of {}", multi_label=False
    )

    answer = await ZeroShot(model="m").run("text", parameters, ask(Vectors(**VECTORS)))

    assert scores(answer) == {"nothing": 0.5, "far": 0.5}


async def test_all_rows_of_an_item_are_asked_at_once() -> None:
    vectors = Vectors(**VECTORS)
    parameters = ZeroShotParameters(labels=["near", "far"], hypothesis_template="of {}")

    await ZeroShot(model="m").run("text", parameters, ask(vectors))

    assert vectors.asked == ["text", "of near", "of far", "of "]


async def test_a_choice_is_the_nearest_text() -> None:
    vectors = Vectors(text=[1.0, 0.0], near=[3.0, 4.0], far=[0.0, 1.0])
    item = ChooseItem(prompt="text", choices=["far", "near"])

    answer = await Choose(model="m").run(item, ChooseParameters(), ask(vectors))

    assert answer["choice"] == 1
    assert answer["scores"][1] == pytest.approx(1 / (1 + math.exp(-12)), abs=1e-5)
