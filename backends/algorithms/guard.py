"""Looks at texts with the detectors of a guard."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from sluicegate.backends.algorithms.base import (
    Algorithm,
    Algorithms,
    ModelAlgorithms,
    Recipe,
    all_of,
)
from sluicegate.backends.algorithms.classify import Classify
from sluicegate.backends.algorithms.labelled_spans import LabelledSpans
from sluicegate.backends.algorithms.labels import Labeller
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.guards.readable import ReadableText, readable
from sluicegate.backends.guards.texts import find_in_text, same_letters
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import apply_function, written
from sluicegate.backends.pipelines.token_work import run_token_work
from sluicegate.backends.pipelines.windows import Span, Windows
from sluicegate.backends.types import FloatArray
from sluicegate.wire.guards import (
    VERDICTS,
    AnyDetector,
    ClassifierDetector,
    EntityDetector,
    ModelDetector,
)
from sluicegate.wire.protocol import MAX_ENTITIES, EntitiesParameters, GuardParameters, Task

BoolArray = NDArray[np.bool_]


class _Finding(NamedTuple):
    detector: AnyDetector
    label: str
    score: float
    span: Span


class Guard(Algorithm):
    """Runs the detectors that the parameters declare, on every window of a text.

    Rows of the same text in the same encoder are computed once, so detectors whose models are heads
    of one encoder share its work.
    """

    def __init__(self, below: Sequence[ModelAlgorithms]) -> None:
        self._below = {served.info.name: served for served in below}
        self.version = 1 + sum(
            algorithm.version for served in below for algorithm in served.algorithms.values()
        )

    @override
    async def run(self, item: str, parameters: GuardParameters, ask: AlgorithmContext) -> Any:
        text = readable(item)
        detectors = parameters.detectors
        has_words = not text.text.isspace() and text.text != ""
        by_model = [one for one in detectors if isinstance(one, ModelDetector) and has_words]
        found = await run_token_work(len(item), _find_in_text, detectors, text)
        for more in await all_of(self._find(one, text, parameters, ask) for one in by_model):
            found += more
        if ask.is_truncated:
            raise ItemRefused(
                "input_too_long", "a detector cannot read the whole text; send it in parts"
            )
        if len(found) > MAX_ENTITIES:
            raise ItemRefused(
                "too_many_findings",
                f"the text has more than {MAX_ENTITIES:,} findings; send it in parts",
            )
        return await run_token_work(len(found), self._answer, item, found, parameters)

    def _answer(
        self, item: str, found: list[_Finding], parameters: GuardParameters
    ) -> dict[str, Any]:
        if parameters.allow:
            allowed = set(map(same_letters, parameters.allow))
            found = [one for one in found if same_letters(item[slice(*one.span)]) not in allowed]
        strongest = max((VERDICTS.index(one.detector.action) for one in found), default=0)
        return {
            "verdict": VERDICTS[strongest],
            "findings": [
                self._written(one) for one in sorted(found, key=lambda one: (one.span, one.label))
            ],
        }

    def _written(self, found: _Finding) -> dict[str, Any]:
        detector, (start, end) = found.detector, found.span
        result = {
            "detector": detector.name,
            "action": detector.action,
            "label": found.label,
            "score": written(found.score),
            "start": start,
            "end": end,
        }
        if isinstance(detector, ModelDetector):
            result["model"] = detector.model
            result["revision"] = self._below[detector.model].info.revision
        return result

    async def _find(
        self,
        detector: ModelDetector,
        text: ReadableText,
        parameters: GuardParameters,
        ask: AlgorithmContext,
    ) -> list[_Finding]:
        served = self._below.get(detector.model)
        if served is None:
            known = ", ".join(f"`{name}`" for name in self._below)
            raise _invalid(detector, f"names the model `{detector.model}`; this guard has {known}")
        if isinstance(detector, EntityDetector):
            return await _find_entities(detector, served, text, ask)
        return await _find_labels(detector, served, text, parameters, ask)


def _find_in_text(detectors: Sequence[AnyDetector], text: ReadableText) -> list[_Finding]:
    return [
        _Finding(detector, label, 1.0, span)
        for detector in detectors
        for label, span in find_in_text(detector, text)
    ]


async def _find_labels(
    detector: ClassifierDetector,
    served: ModelAlgorithms,
    text: ReadableText,
    parameters: GuardParameters,
    ask: AlgorithmContext,
) -> list[_Finding]:
    algorithm = served.algorithms.get(Task.CLASSIFY)
    if not isinstance(algorithm, Labeller):
        raise _invalid(detector, f"needs a classifier, which `{detector.model}` is not")
    thresholds = detector.labels or detector.expected
    _check_labels(detector, algorithm.labels)
    if isinstance(algorithm, Classify):
        windows = Windows(overlap=parameters.window_overlap(served.info.max_tokens))
        logits = await ask.windows(algorithm.model, text.text, windows)
        scores = apply_function(logits, algorithm.function)
        spans = partial(ask.window_places, algorithm.model, text.text, windows)
    else:
        scores = (await algorithm.scores(text.text, ask))[None]
        spans = None
    places = [algorithm.labels.index(label) for label in thresholds]
    reached = scores[:, places] >= np.array(list(thresholds.values()), dtype=np.float32)
    hits = list(_expected(scores, reached) if detector.expected else _labelled(reached, places))
    if not hits:
        return []
    whole = [(0, len(text.text))]
    where = await spans() if spans is not None and len(scores) > 1 else whole
    return [
        _Finding(
            detector,
            algorithm.labels[place],
            float(scores[window, place]),
            text.original(where[window]),
        )
        for window, place in hits
    ]


def _labelled(reached: BoolArray, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield each window and each label that it reaches."""
    for window, column in np.argwhere(reached).tolist():
        yield window, places[column]


def _expected(scores: FloatArray, reached: BoolArray) -> Iterator[tuple[int, int]]:
    """Yield each window without an expected label, and its best label."""
    for window in np.flatnonzero(~reached.any(axis=1)).tolist():
        yield window, int(scores[window].argmax())


async def _find_entities(
    detector: EntityDetector, served: ModelAlgorithms, text: ReadableText, ask: AlgorithmContext
) -> list[_Finding]:
    algorithm = served.algorithms.get(Task.ENTITIES)
    if algorithm is None:
        raise _invalid(detector, f"needs a model of entities, which `{detector.model}` is not")
    if isinstance(algorithm, LabelledSpans):
        # Scores must exceed the threshold there, and reach it here.
        least = math.nextafter(min(detector.labels.values()), -1.0)
        asked = EntitiesParameters(labels=list(detector.labels), threshold=max(0.0, least))
    else:
        _check_labels(detector, [label.split("-", 1)[-1] for label in served.info.labels or ()])
        asked = EntitiesParameters()
    result = await algorithm.run(text.text, asked, ask)
    return [
        _Finding(
            detector,
            found["label"],
            found["score"],
            text.original((found["start"], found["end"])),
        )
        for found in result["entities"]
        if found["score"] >= detector.labels.get(found["label"], math.inf)
    ]


def _check_labels(detector: ModelDetector, known: Sequence[str]) -> None:
    labels = detector.labels
    if isinstance(detector, ClassifierDetector):
        if bool(labels) == bool(detector.expected):
            raise _invalid(detector, "needs either `labels` or `expected`")
        labels = labels or detector.expected
    for label in labels:
        if label not in known:
            raise _invalid(detector, f"names the label `{label}`, which its model does not have")


def _invalid(detector: AnyDetector, what: str) -> ItemRefused:
    return ItemRefused(
        "guard_invalid", f"the detector `{detector.name}` {what}; ask the operator to correct it"
    )


class GuardRecipe(Recipe, frozen=True):
    """Builds a model that runs guards' detectors over the models that it uses."""

    @override
    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        return {Task.GUARD: Guard(below)}
