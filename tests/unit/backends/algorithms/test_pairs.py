"""Answers by models that read pairs: the arithmetic of the reference pipelines, row by row."""

import math

import pytest

from sluicegate.backends.algorithms.embedding import Rerank
from sluicegate.backends.algorithms.pairs import CrossEncode, EntailmentZeroShot, MultipleChoice
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.types import Text
from sluicegate.wire.protocol import (
    ChooseItem,
    ChooseParameters,
    RerankParameters,
    ZeroShotParameters,
)
from tests.support.fake_models import FakeModel, asking

pytestmark = pytest.mark.anyio
LABELS = ["contradiction", "neutral", "entailment"]
LOGITS = {
    "is sport": [-1.0, 0.5, 2.0],
    "is money": [3.0, 0.0, 1.0],
    "is art": [0.0, 0.0, 0.0],
}


def nli(text: Text) -> list[float]:
    assert isinstance(text, tuple)
    premise, hypothesis = text
    assert premise == "text"
    return LOGITS[hypothesis]


async def answer(labels: list[str], *, multi_label: bool = False) -> dict[str, float]:
    algorithm = EntailmentZeroShot(model="m", labels=LABELS)
    parameters = ZeroShotParameters(
        labels=labels, hypothesis_template="is {}", multi_label=multi_label
    )
    found = await algorithm.run("text", parameters, asking(m=FakeModel(nli)))
    return {label["label"]: label["score"] for label in found["labels"]}


async def test_labels_compete_by_their_logits_of_entailment() -> None:
    found = await answer(["art", "money", "sport"])

    total = math.e**2 + math.e + 1
    assert list(found) == ["sport", "money", "art"]
    assert found["sport"] == pytest.approx(math.e**2 / total, abs=1e-6)


@pytest.mark.parametrize(("labels", "multi"), [(["money"], False), (["money", "art"], True)])
async def test_a_label_by_itself_is_entailed_or_contradicted(
    labels: list[str],
    multi: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    found = await answer(labels, multi_label=multi)

    assert found["money"] == pytest.approx(1 / (1 + math.exp(3.0 - 1.0)), abs=1e-6)


async def test_where_entailment_comes_first_the_last_label_contradicts() -> None:
    algorithm = EntailmentZeroShot(model="m", labels=["ENTAILMENT", "other"])
    parameters = ZeroShotParameters(labels=["art"], hypothesis_template="is {}")

    found = await algorithm.run("text", parameters, asking(m=FakeModel(lambda _: [1.0, 0.0])))

    assert found["labels"][0]["score"] == pytest.approx(1 / (1 + math.exp(-1.0)), abs=1e-6)


def test_a_model_without_entailment_is_none_for_zero_shot() -> None:
    with pytest.raises(ValueError, match="none of the labels a, b begins with `entail`"):
        EntailmentZeroShot(model="m", labels=["a", "b"])


async def test_one_question_asks_all_labels() -> None:
    model = FakeModel(nli)
    parameters = ZeroShotParameters(labels=["art", "money"], hypothesis_template="is {}")

    await EntailmentZeroShot(model="m", labels=LABELS).run("text", parameters, asking(m=model))

    assert model.questions == [[("text", "is art"), ("text", "is money")]]


async def test_a_choice_is_the_row_with_the_highest_logit() -> None:
    model = FakeModel(lambda text: [float(len(text[1]))])
    item = ChooseItem(prompt="which", choices=["a", "abc", "ab"])

    found = await MultipleChoice(model="m").run(item, ChooseParameters(), asking(m=model))

    assert found["choice"] == 1
    assert found["scores"][1] == pytest.approx(1 / (1 + math.exp(-1) + math.exp(-2)), abs=1e-6)


async def test_a_query_that_is_empty_is_named_and_not_the_document() -> None:
    ask = asking(m=FakeModel(lambda _: [1.0]))

    with pytest.raises(ItemRefused, match="`query` is empty"):
        await Rerank(model="m").run("doc", RerankParameters(query=" "), ask)


@pytest.mark.parametrize(
    ("logits", "score"), [([2.0], 1 / (1 + math.exp(-2.0))), ([0.0, 2.0], 1 / (1 + math.exp(-2.0)))]
)
async def test_a_document_is_read_after_the_query(logits: list[float], score: float) -> None:
    model = FakeModel(lambda _: logits)

    found = await CrossEncode(model="m").run("doc", RerankParameters(query="q"), asking(m=model))

    assert model.questions == [[("q", "doc")]]
    assert found["score"] == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("text", ["", " \n\t"])
async def test_an_empty_text_is_refused_whatever_the_labels(text: str) -> None:
    algorithm = EntailmentZeroShot(model="m", labels=LABELS)

    with pytest.raises(ItemRefused) as caught:
        await algorithm.run(text, ZeroShotParameters(labels=["a"]), asking(m=FakeModel(nli)))

    assert caught.value.code == "empty_input"


async def test_small_scores_of_documents_stay_apart() -> None:
    logits = {"a": -18.0, "b": -20.0, "c": -15.8}
    model = FakeModel(lambda text: [logits[text[1]]])
    algorithm = CrossEncode(model="m")
    parameters = RerankParameters(query="q")

    scores = [(await algorithm.run(text, parameters, asking(m=model)))["score"] for text in logits]

    assert sorted(range(3), key=lambda place: -scores[place]) == [2, 0, 1]
    assert scores[1] == pytest.approx(1 / (1 + math.exp(20.0)), rel=1e-5)


@pytest.mark.parametrize("algorithm", [Rerank(model="m"), CrossEncode(model="m")])
def test_models_with_one_score_refuse_weights(algorithm: Rerank | CrossEncode) -> None:
    with pytest.raises(ItemRefused, match="weights"):
        algorithm.texts("a", RerankParameters(query="q", weights={"dense": 1.0}))
