"""Cascades, ensembles, label trees and long documents over models whose scores are told."""

from collections.abc import Sequence

import numpy as np
import pytest
from typing_extensions import override

from sluicegate.backends.algorithms.cascade import Cascade
from sluicegate.backends.algorithms.classify import Classify
from sluicegate.backends.algorithms.embedding import Embed
from sluicegate.backends.algorithms.ensemble import Combination, Ensemble
from sluicegate.backends.algorithms.label_tree import LabelTree, read_tree
from sluicegate.backends.algorithms.labels import Label
from sluicegate.backends.algorithms.long_document import LongClassify, LongEmbed, LongZeroShot
from sluicegate.backends.algorithms.questions import ZeroShotTask
from sluicegate.backends.algorithms.zero_shot import ZeroShot
from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.errors import ItemRefused, ModelFailed
from sluicegate.backends.pipelines.windows import Combination as WindowCombination, Windows
from sluicegate.backends.types import FloatArray, Prompt
from sluicegate.wire.protocol import ClassifyParameters, EmbedParameters, Function
from tests.support.fake_models import FakeModel, asking

pytestmark = pytest.mark.anyio


def classify(model: str, labels: Sequence[str] = ("no", "yes")) -> Classify:
    """Return a classifier whose logits are its scores."""
    return Classify(model=model, labels=labels, function="none")


def told(**by_text: list[float]) -> FakeModel:
    return FakeModel(lambda text: by_text[str(text)])


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "none"])
@pytest.mark.parametrize("labels", [3, 40])
async def test_a_classifier_answers_alike_by_either_way(function: Function, labels: int) -> None:
    """A call's items are answered by a query; splits, shadows and owners' algorithms `run` it."""
    names = [f"label {number}" for number in range(labels)]
    algorithm = Classify(model="m", labels=names, function=function)
    logits = np.random.default_rng(0).normal(scale=3.0, size=(200, labels)).astype(np.float32)
    logits[0, :3] = 18.0, 21.0, -3.0

    for line in logits:
        parameters = ClassifyParameters(top_k=2)
        ask = asking(m=FakeModel(lambda _, line=line: line))  # type: ignore[misc]
        ran = await algorithm.run("text", parameters, ask)

        assert algorithm.answer(line[None, :], parameters) == ran


async def test_a_cascade_asks_the_large_model_only_below_the_threshold() -> None:
    small = told(easy=[0.1, 0.9], hard=[0.6, 0.4])
    large = told(hard=[0.2, 0.8])
    cascade = Cascade(small=classify("s"), large=classify("l"), threshold=0.7)
    ask = asking(s=small, l=large)

    easy, hard = [(await cascade.rank(text, ask))[0] for text in ("easy", "hard")]

    assert easy == Label(label="yes", score=0.9)
    assert hard == Label(label="yes", score=0.8)
    assert (small.rows, large.rows) == (2, 1)


@pytest.mark.parametrize("function", ["none", "sigmoid"])
async def test_a_cascade_is_unsure_by_its_small_model_s_own_function(function: Function) -> None:
    small = Classify(model="s", labels=["no", "yes"], function="softmax")
    cascade = Cascade(small=small, large=classify("l"), threshold=0.8)
    models = {"s": told(sure=[-9.0, -6.0], unsure=[5.0, 6.0]), "l": told(unsure=[1.0, 0.0])}
    parameters = ClassifyParameters(function=function)

    sure, unsure = [
        await cascade.run(text, parameters, asking(**models)) for text in ("sure", "unsure")
    ]

    assert sure == await small.run("sure", parameters, asking(**models))
    assert unsure == await classify("l").run("unsure", parameters, asking(**models))


@pytest.mark.parametrize(("score", "rows"), [(0.29, 0), (0.3, 1), (0.5, 1), (0.94, 1), (0.95, 0)])
async def test_a_cascade_asks_the_large_model_if_a_score_is_in_its_band(
    score: float, rows: int
) -> None:
    large = told(a=[0.5, 0.5])
    small = told(a=[1 - score, score])
    cascade = Cascade(small=classify("s"), large=classify("l"), unsure={"yes": (0.3, 0.95)})

    await cascade.scores("a", asking(s=small, l=large))

    assert large.rows == rows


async def test_a_cascade_asks_the_large_model_for_unsure_windows_alone() -> None:
    small, large = told(sure=[0.1, 0.9], unsure=[0.6, 0.4]), told(unsure=[0.2, 0.8])
    cascade = Cascade(small=classify("s"), large=classify("l"), threshold=0.7)
    ask = asking(s=small, l=large)

    read = await cascade.window_scores("sure|unsure|sure", ask, Windows(overlap=0))

    assert read.scores.tolist() == pytest.approx(np.array([[0.1, 0.9], [0.2, 0.8], [0.1, 0.9]]))
    assert await read.find_places() == [(0, 4), (5, 11), (12, 16)]
    assert large.questions == [["unsure"]]


async def test_a_failure_of_an_unsure_window_leaves_the_sure_ones() -> None:
    def broken(_: object) -> list[float]:
        raise ModelFailed("broken")

    small = told(sure=[0.1, 0.9], unsure=[0.6, 0.4])
    cascade = Cascade(small=classify("s"), large=classify("l"), threshold=0.7)
    ask = asking(s=small, l=FakeModel(broken))

    read = await cascade.window_scores("unsure|sure", ask, Windows(overlap=0))

    assert read.scores.tolist() == pytest.approx(np.array([[0.1, 0.9]]))
    assert await read.places("unsure|sure") == [(7, 11)]
    assert isinstance(read.failure, ModelFailed)


async def test_an_ensemble_refuses_to_read_several_windows() -> None:
    ensemble = Ensemble(
        classifiers=[
            LongClassify(below=classify(name), windows=Windows(overlap=0)) for name in "ab"
        ],
        combine="mean",
        weights=(1.0, 1.0),
    )
    model = told(good=[1.0, 0.0], bad=[0.0, 1.0])
    ask = asking(a=model, b=model)

    read = await ensemble.window_scores("bad", ask, Windows(overlap=0))
    with pytest.raises(ItemRefused, match="several windows"):
        await ensemble.window_scores("good|good|bad", ask, Windows(overlap=0))

    assert read.scores.tolist() == [[0.0, 1.0]]


class WholeTexts(FakeModel):
    """Reads any text in one window."""

    @override
    async def windows(
        self, text: str, caller: RowCaller, windows: Windows, *, prompt: Prompt | None = None
    ) -> FloatArray:
        return await self.vectors([text], caller)


async def test_a_large_model_may_read_a_small_model_s_window_in_several() -> None:
    small, large = WholeTexts(lambda _: [0.5, 0.5]), told(first=[0.2, 0.8], last=[0.7, 0.3])
    cascade = Cascade(small=classify("s"), large=classify("l"), threshold=0.7)

    read = await cascade.window_scores("first|last", asking(s=small, l=large), Windows(overlap=0))

    assert read.scores.tolist() == pytest.approx(np.array([[0.2, 0.8], [0.7, 0.3]]))
    assert await read.find_places() == [(0, 5), (6, 10)]


async def test_a_cascade_s_labels_are_in_one_order_whoever_answers() -> None:
    small = Classify(model="s", labels=["yes", "no"], function="none")
    cascade = Cascade(small=small, large=classify("l"), threshold=0.0)

    scores = await cascade.scores("a", asking(s=told(a=[0.9, 0.1]), l=told()))

    assert scores.tolist() == pytest.approx([0.1, 0.9])


@pytest.mark.parametrize(
    ("combine", "weights", "expected"),
    [
        ("mean", [1.0, 1.0, 1.0], [0.5, 0.5]),
        ("weighted", [2.0, 1.0, 1.0], [0.4, 0.6]),
        ("vote", [1.0, 1.0, 1.0], [2 / 3, 1 / 3]),
    ],
)
async def test_an_ensemble_counts_scores_or_votes(
    combine: Combination, weights: list[float], expected: list[float]
) -> None:
    scores = {"a": [0.1, 0.9], "b": [0.8, 0.2], "c": [0.6, 0.4]}
    models = {name: told(x=line) for name, line in scores.items()}
    ensemble = Ensemble(classifiers=list(map(classify, models)), combine=combine, weights=weights)

    found = await ensemble.scores("x", asking(**models))

    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert [model.rows for model in models.values()] == [1, 1, 1]


async def test_equal_votes_are_ordered_by_the_mean() -> None:
    models = {"a": told(x=[0.6, 0.4]), "b": told(x=[0.1, 0.9])}
    ensemble = Ensemble(classifiers=list(map(classify, models)), combine="vote", weights=[1.0, 1.0])

    best, _ = await ensemble.rank("x", asking(**models))

    assert best == Label(label="yes", score=0.5)


# An embedding of a label is one axis; a text lies between some of them.
AXES = ["animal", "food", "cat", "dog", "pear", "bread"]
VECTORS = {name: [float(place == i) for i in range(6)] for place, name in enumerate(AXES)}
VECTORS["kitten"] = [0.5, 0.3, 0.8, 0.2, 0.0, 0.0]
VECTORS["hot dog"] = [0.42, 0.4, 0.0, 0.2, 0.1, 0.6]


def tree(beam: int, judge: ZeroShotTask | None = None) -> tuple[LabelTree, FakeModel]:
    model = FakeModel(lambda text: VECTORS[str(text)])
    nodes = read_tree({"animal": ["cat", "dog"], "food": ["pear", "bread"]})
    judge = judge or ZeroShot(model="m")
    return LabelTree(judge=judge, tree=nodes, template="{}", beam=beam), model


async def test_a_tree_is_walked_down_its_best_branch() -> None:
    walk, model = tree(beam=1)

    found = await walk.rank("kitten", asking(m=model))

    assert [label.label for label in found] == ["cat"]
    assert found[0].score == pytest.approx(0.98, abs=0.02)
    assert ["pear" in question for question in model.questions] == [False, False]


async def test_a_beam_finds_what_lies_below_the_second_best_branch() -> None:
    greedy, model = tree(beam=1)
    wide, _ = tree(beam=2)

    (first,) = await greedy.rank("hot dog", asking(m=model))
    best, second = await wide.rank("hot dog", asking(m=model))

    assert first.label == "dog"
    assert {best.label, second.label} == {"dog", "bread"}
    assert second.score < best.score <= 1.0


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_tree_is_walked_for_each_window(*, is_long: bool) -> None:
    short, mean = ZeroShot(model="m"), Windows(combine="mean", overlap=0)
    walk, model = tree(1, LongZeroShot(below=short, windows=mean) if is_long else short)
    alone = await walk.scores("hot dog", asking(m=model))

    read = await walk.window_scores("kitten|hot dog|kitten", asking(m=model), Windows(overlap=0))

    assert [walk.labels[best] for best in read.scores.argmax(axis=1)] == ["cat", "dog", "cat"]
    assert read.scores[1] == pytest.approx(alone, abs=1e-5)
    assert await read.places("kitten|hot dog|kitten") == [(0, 6), (7, 14), (15, 21)]


async def test_a_tree_is_not_walked_for_too_many_windows() -> None:
    walk, model = tree(beam=1)
    most = "|".join(["kitten"] * 256)

    read = await walk.window_scores(most, asking(m=model), Windows(overlap=0))
    with pytest.raises(ItemRefused, match="257 windows") as refused:
        await walk.window_scores(f"{most}|kitten", asking(m=model), Windows(overlap=0))

    assert len(read.scores) == 256
    assert refused.value.code == "input_too_long"


@pytest.mark.parametrize(
    "written", [None, "a", [], {}, {"a": []}, ["a", "a"], {"a": ["x"], "b": ["x"]}, [" "]]
)
def test_a_tree_that_cannot_be_walked_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="tree"):
        read_tree(written)


def test_a_tree_may_be_of_any_depth() -> None:
    nodes = read_tree({"a": {"b": ["c", {"d": ["e"]}]}, "f": None})

    walk = LabelTree(judge=ZeroShot(model="m"), tree=nodes, template="{}", beam=1)

    assert walk.labels == ["c", "e", "f"]


async def test_a_tree_s_scores_are_by_softmax_alone() -> None:
    walk, model = tree(beam=1)

    with pytest.raises(ItemRefused) as caught:
        await walk.run("kitten", ClassifyParameters(function="none"), asking(m=model))

    assert caught.value.code == "bad_function"


@pytest.mark.parametrize(
    ("combine", "expected"), [("mean", [0.5, 0.5]), ("max", [0.8, 0.7]), ("first", [0.3, 0.7])]
)
async def test_windows_become_one_answer(combine: WindowCombination, expected: list[float]) -> None:
    model = told(a=[0.3, 0.7], b=[0.8, 0.2], c=[0.4, 0.6])
    long = LongClassify(below=classify("m"), windows=Windows(combine=combine, overlap=0))

    found = await long.scores("a|b|c", asking(m=model))

    assert found.tolist() == pytest.approx(expected)
    assert model.rows == (1 if combine == "first" else 3)


async def test_the_vector_of_a_long_text_is_shortened_before_it_is_normalised() -> None:
    model = told(a=[3.0, 0.0, 9.0], b=[3.0, 8.0, 9.0])
    mean = Windows(combine="mean", overlap=0)
    long = LongEmbed(below=Embed(model="m", dimensions=3), windows=mean)

    found = await long.run("a|b", EmbedParameters(dimensions=2), asking(m=model))

    assert found["embedding"].tolist() == pytest.approx([0.6, 0.8])
