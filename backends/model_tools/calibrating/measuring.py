"""Runs the models of a cascade on texts, and measures their decisions and their time."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.algorithms.base import all_of
from sluicegate.backends.algorithms.cascade import Band, Cascade
from sluicegate.backends.algorithms.classify import Classify
from sluicegate.backends.algorithms.labels import Labeller, reorder
from sluicegate.backends.errors import BackendError, StartProblem
from sluicegate.backends.model_tools.calibrating.bands import (
    Judged,
    Point,
    choose,
    find_bands,
    trials_needed,
)
from sluicegate.backends.model_tools.running import context_of, open_model
from sluicegate.backends.qualification.golden_texts import GoldenSet
from sluicegate.backends.serving.core import ModelSetEntry
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.types import FloatArray, Text
from sluicegate.wire.protocol import Task

_AT_ONCE = 64
_EVEN = 0.5
# A text is decided by one or several answers, such as the number of its best label.
Decisions = NDArray[np.intp]


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the largest allowed disagreement, and which decisions are compared.

    `missed` is the largest share of the large model's findings of `label` that may be missed.
    Without a `label`, decisions are best labels. If a text may have several labels, they are the
    labels with a score of at least 0.5. With a `label`, the decision is whether its score reaches
    `score`.
    """

    disagreement: float
    missed: float | None = None
    label: str | None = None
    score: float = _EVEN

    def options(self, band: Band) -> dict[str, Any]:
        """Return the options of a cascade with a band."""
        return {"threshold": band[1]} if self.label is None else {"unsure": {self.label: band}}


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the points of the curve, the chosen point, and seconds for each text.

    The points are measured on half of the texts.
    `accuracies` of the small model, the large model and the cascade are set if labels are known.
    """

    goal: Goal
    curve: list[Point]
    chosen: Point
    small_seconds: float
    large_seconds: float
    cascade_seconds: float
    accuracies: tuple[float, float, float] | None


def calibrate(settings: BackendSettings, name: str, golden: GoldenSet, goal: Goal) -> Calibration:
    """Choose when a cascade of a repository asks its large model.

    Raises:
        StartProblem: the model is no cascade, refuses a text, or cannot keep the goal; or there are
            too few texts or findings.
    """
    texts = {text: number for number, text in enumerate(golden.texts, 1)}
    if len(texts) < (needed := 2 * trials_needed(goal.disagreement)):
        raise StartProblem(
            f"there are {len(texts):,} different texts; a disagreement of at most "
            f"{goal.disagreement:.2%} needs {needed:,}, and more if any text disagrees"
        )
    # Without caches, each text is computed.
    settings = msgspec.structs.replace(settings, row_cache_bytes=0)
    known = [golden.labels[number - 1] for number in texts.values()] if golden.labels else []
    return asyncio.run(_calibrate(settings, name, texts, known, goal))


async def _calibrate(
    settings: BackendSettings,
    name: str,
    texts: Mapping[Text, int],
    labels: Sequence[str],
    goal: Goal,
) -> Calibration:
    async with open_model(settings, name) as entry:
        cascade = entry.served_model.algorithms.get(Task.CLASSIFY)
        if not isinstance(cascade, Cascade):
            raise StartProblem(f"`{name}` has another algorithm than `cascade`")
        if goal.label is not None and goal.label not in cascade.labels:
            raise StartProblem(f"`{name}` has no label `{goal.label}`: {', '.join(cascade.labels)}")
        small, large = cascade.small, cascade.large
        if goal.label is not None:
            # A guard never combines windows, so a text of several windows is refused here.
            small, large = _classifier(small), _classifier(large)
        small_scores, small_seconds = await _scores(entry, small, texts)
        large_scores, large_seconds = await _scores(entry, large, texts)
        quick = _decisions(reorder(small_scores, small.labels, large.labels), large, goal)
        slow = _decisions(large_scores, large, goal)
        judged = Judged(
            scores=_scores_of_bands(small, small_scores, goal),
            differs=(quick != slow).any(axis=1),
            middle=0.0 if goal.label is None else goal.score,
        )
        first, second = judged.halves()
        bands = find_bands(first)
        if goal.missed is not None and second.reached < (needed := trials_needed(goal.missed)):
            raise StartProblem(
                f"the large model finds `{goal.label}` in {second.reached:,} of the tested texts; "
                f"a missed share of at most {goal.missed:.2%} needs {needed:,}, and more if any is "
                "missed; use more texts with the label"
            )
        chosen = choose(second, bands, goal.disagreement, missed=goal.missed)
        if chosen is None:
            alone = second.point(bands[-1])
            raise StartProblem(
                "no text can be left to the small model, which disagrees on "
                f"{alone.disagreement:.1%} of the texts"
                + f" and misses {alone.missed} of {alone.reached} findings" * bool(goal.label)
                + "; use more texts, or a small model that is more like the large one"
            )
        calibrated = Cascade(small=small, large=large, **goal.options(chosen.band))
        final_scores, cascade_seconds = await _scores(entry, calibrated, texts)
    final = _decisions(final_scores, large, goal)
    return Calibration(
        goal=goal,
        curve=[second.point(band) for band in bands],
        chosen=chosen,
        small_seconds=small_seconds,
        large_seconds=large_seconds,
        cascade_seconds=cascade_seconds,
        accuracies=_accuracies((quick, slow, final), labels, large.labels, goal),
    )


async def _scores(
    entry: ModelSetEntry, labeller: Labeller, texts: Mapping[Text, int]
) -> tuple[FloatArray, float]:
    """Return the scores of each text, and the seconds for each text.

    `texts` maps each text to its number in the file, which errors name.
    """
    slots = asyncio.Semaphore(_AT_ONCE)

    async def score(text: Text, number: int) -> FloatArray:
        async with slots:
            context = context_of(entry)
            try:
                scores = await labeller.scores(text, context)
            except BackendError as error:
                raise StartProblem(f"text {number}: {error}") from None
            if context.is_truncated:
                raise StartProblem(
                    f"text {number} is too long for a model to read whole; cut long texts into "
                    "windows, as guards do"
                )
            return scores

    began = time.perf_counter()
    lines = await all_of(score(*pair) for pair in texts.items())
    return np.stack(lines), (time.perf_counter() - began) / len(texts)


def _decisions(scores: FloatArray, large: Labeller, goal: Goal) -> Decisions:
    """Return what is compared; `scores` are in the order of the labels of `large`.

    The large model says whether a text may have several labels, for all models.
    """
    if goal.label is not None:
        return (scores[:, [large.labels.index(goal.label)]] >= goal.score).astype(np.intp)
    while isinstance(large, Cascade):
        large = large.large
    classifier = _classifier(large)
    if isinstance(classifier, Classify) and classifier.function == "sigmoid":
        return (scores >= _EVEN).astype(np.intp)
    return np.asarray(scores.argmax(axis=1, keepdims=True))


def _classifier(labeller: Labeller) -> Labeller:
    """Return the classifier below a `long-document`, which has the same function."""
    below = getattr(labeller, "below", None)
    return below if isinstance(below, Labeller) else labeller


def _scores_of_bands(small: Labeller, scores: FloatArray, goal: Goal) -> NDArray[np.float64]:
    """Return the small model's score of the label or, without a label, its confidence."""
    if goal.label is not None:
        return scores[:, small.labels.index(goal.label)].astype(np.float64)
    return np.array([small.confidence(line) for line in scores])


def _accuracies(
    decisions: tuple[Decisions, Decisions, Decisions],
    labels: Sequence[str],
    known: Sequence[str],
    goal: Goal,
) -> tuple[float, float, float] | None:
    """Return the share of right decisions; `None` if the labels are unknown."""
    if goal.label is not None and labels:
        expected = [int(label == goal.label) for label in labels]
    elif labels and set(labels) <= set(known) and decisions[0].shape[1] == 1:
        expected = [known.index(label) for label in labels]
    else:
        return None
    small, large, cascade = (float((made[:, 0] == expected).mean()) for made in decisions)
    return small, large, cascade
