"""Looks at texts with the detectors of a guard."""

import asyncio
import itertools
import math
from collections.abc import Awaitable, Collection, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from sluicegate.backends.algorithms.base import (
    Algorithm,
    Algorithms,
    ModelAlgorithms,
    Recipe,
)
from sluicegate.backends.algorithms.classify import Classify
from sluicegate.backends.algorithms.embedding import Embed
from sluicegate.backends.algorithms.examples import ExampleVectors
from sluicegate.backends.algorithms.labelled_spans import LabelledSpans
from sluicegate.backends.algorithms.labels import Labeller, WindowScores
from sluicegate.backends.errors import DeadlineExceeded, ItemRefused, Overloaded, reported
from sluicegate.backends.guards.readable import (
    ReadableText,
    all_folded,
    model_readings,
    readings,
    same_letters,
)
from sluicegate.backends.guards.texts import find_in_text, work_of
from sluicegate.backends.guards.time_limit import TimeLimit
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import normalize, written
from sluicegate.backends.pipelines.token_work import run_token_work
from sluicegate.backends.pipelines.windows import Span, Windows
from sluicegate.backends.types import FloatArray
from sluicegate.wire.guards import (
    VERDICTS,
    AnyDetector,
    ClassifierDetector,
    EntityDetector,
    ExampleDetector,
    ModelDetector,
)
from sluicegate.wire.protocol import MAX_ENTITIES, EntitiesParameters, GuardParameters, Task

BoolArray = NDArray[np.bool_]
_TEXT_SECONDS: Final = 1.0
# The time until an item's deadline that detectors leave for the verdict: this share, but at least
# so many seconds, and at most half of the time.
_VERDICT_SHARE: Final = 0.05
_VERDICT_SECONDS: Final = 0.1
_MOST_SCORES: Final = 64
# So many characters are read in the time of a token.
_CHARACTERS: Final = 8


class _Finding(NamedTuple):
    detector: AnyDetector
    label: str
    score: float
    span: Span
    is_found: bool = True
    """If not, the score does not reach the threshold, but counts among the scores."""


class Guard(Algorithm):
    """Runs the detectors that the parameters declare, on every window of a text.

    Rows of the same text in the same encoder are computed once, so detectors whose models are heads
    of one encoder share its work.
    """

    def __init__(self, below: Sequence[ModelAlgorithms]) -> None:
        self._below = {served.info.name: served for served in below}
        self._examples = ExampleVectors()
        self.version = 4 + sum(
            algorithm.version for served in below for algorithm in served.algorithms.values()
        )

    @override
    async def run(self, item: str, parameters: GuardParameters, ask: AlgorithmContext) -> Any:
        read = await run_token_work(len(item) // _CHARACTERS, readings, item)
        seen = await run_token_work(len(item) // _CHARACTERS, model_readings, read)
        in_text: list[_Finding] = []
        by_model: list[_Finding] = []
        failures: list[Exception] = []
        finding = [
            self._find_in_turn(group, reading, parameters, ask, by_model, failures)
            for group in self._groups(parameters.detectors)
            for reading in seen
        ]
        if own := [one for one in parameters.detectors if not isinstance(one, ModelDetector)]:
            # In characters: a detector may take 3 microseconds for each.
            work = len(item) + sum(map(work_of, own))
            reading_text = run_token_work(work, _find_in_text, own, item, read, in_text)
            finding.append(_noting(failures, reading_text))
        await _in_time(finding, ask, failures)
        found = [*in_text, *by_model]  # a thread that is late may still add to `in_text`
        hits = [one for one in found if one.is_found]
        # Several readings of a text have most findings in common.
        different = {(one.detector.name, one.label, one.span) for one in hits}
        failures += _incomplete(len(different), ask)
        if failures:
            found = [one for one in hits if one.detector.action == "block"][:MAX_ENTITIES]
        work = len(found) + len(parameters.allow)
        answer = await run_token_work(work, self._answer, item, found, parameters)
        errors = [*map(reported, failures)]
        if not errors:
            return answer
        if answer["verdict"] != "block":
            raise errors[0]
        ask.note_partial()
        answer["error"] = {"code": errors[0].code, "detail": str(errors[0])}
        answer.pop("scores", None)
        return answer

    def _groups(self, detectors: Sequence[AnyDetector]) -> Collection[list[ModelDetector]]:
        """Return groups of detectors: the first of a group computes the rows of the others."""
        groups: dict[tuple[str, str], list[ModelDetector]] = {}
        for one in detectors:
            if isinstance(one, ModelDetector):
                groups.setdefault(self._rows_of(one), []).append(one)
        return groups.values()

    def _rows_of(self, detector: ModelDetector) -> tuple[str, str]:
        """Return the name of what a detector reads, which is its own unless it runs a head."""
        served = self._below.get(detector.model)
        if served is None or not isinstance(detector, ClassifierDetector):
            return ("detector", detector.name)
        is_head = isinstance(served.algorithms.get(Task.CLASSIFY), Classify)
        return ("encoder", served.encoder) if is_head else ("detector", detector.name)

    async def _find_in_turn(
        self,
        detectors: Sequence[ModelDetector],
        text: ReadableText,
        parameters: GuardParameters,
        ask: AlgorithmContext,
        found: list[_Finding],
        failures: list[Exception],
    ) -> None:
        """Append what detectors find, one after another."""
        for one in detectors:
            try:
                found += await self._find(one, text, parameters, ask, failures)
            except Overloaded as full:  # the others need the same rows, and would wait again
                failures.append(full)
                return
            except Exception as error:  # noqa: BLE001 - what others find counts all the same
                failures.append(error)

    def _answer(
        self, item: str, found: list[_Finding], parameters: GuardParameters
    ) -> dict[str, Any]:
        if found and parameters.allow:
            allowed = set(all_folded(parameters.allow))
            found = [one for one in found if same_letters(item[slice(*one.span)]) not in allowed]
        scores = {}
        if parameters.with_scores:
            scores["scores"] = self._scores(parameters.detectors, found)
        found = [one for one in found if one.is_found]
        best = {
            (one.detector.name, one.label, one.span): one
            for one in sorted(found, key=lambda one: one.score)
        }
        strongest = max((VERDICTS.index(one.detector.action) for one in found), default=0)
        written = sorted(best.values(), key=lambda one: (one.span, one.label))
        return {
            "verdict": VERDICTS[strongest],
            "findings": [self._written(one) for one in written],
            **scores,
        }

    def _scores(
        self, detectors: Sequence[AnyDetector], found: Sequence[_Finding]
    ) -> dict[str, dict[str, Any]]:
        """Return the best scores of each detector, which say what other thresholds would find."""
        by_detector: dict[str, dict[str, float]] = {}
        for one in found:
            best = by_detector.setdefault(one.detector.name, {})
            # Not rounded: the exact score was compared with the threshold.
            best[one.label] = max(one.score, best.get(one.label, -1.0))
        most = max(1, _MOST_SCORES // len(detectors))
        summed = [
            (each.name, _summed_up(by_detector.get(each.name, {}), self._least(each), most))
            for each in detectors
        ]
        return {name: scores for name, scores in summed if scores != {"best": {}}}

    def _least(self, detector: AnyDetector) -> float:
        """Return the score from which a detector learns of labels."""
        if not isinstance(detector, EntityDetector):
            return 0.0
        served = self._below.get(detector.model)
        algorithm = served and served.algorithms.get(Task.ENTITIES)
        return min(detector.labels.values()) if isinstance(algorithm, LabelledSpans) else 0.0

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
        failures: list[Exception],
    ) -> list[_Finding]:
        """Return what a detector finds; append why it could not read some windows."""
        served = self._below.get(detector.model)
        if served is None:
            known = ", ".join(f"`{name}`" for name in self._below)
            raise _invalid(detector, f"names the model `{detector.model}`; this guard has {known}")
        if isinstance(detector, EntityDetector):
            return await _find_entities(detector, served, text, ask)
        if isinstance(detector, ExampleDetector):
            overlap = parameters.window_overlap(served.info.max_tokens)
            return await _find_similar(
                detector, served, text, Windows(overlap=overlap), self._examples, ask
            )
        return await _find_labels(detector, served, text, parameters, ask, failures)


async def _noting(failures: list[Exception], finding: Awaitable[None]) -> None:
    """Append the error with which `finding` ends."""
    try:
        await finding
    except Exception as error:  # noqa: BLE001 - what other detectors find counts all the same
        failures.append(error)


async def _in_time(
    finding: Sequence[Coroutine[Any, Any, None]], ask: AlgorithmContext, failures: list[Exception]
) -> None:
    """Run detectors, and end early enough for a verdict on what they have found by then."""
    left = ask.time_left
    reserved = min(max(_VERDICT_SHARE * left, _VERDICT_SECONDS), left / 2)
    # A task for one would only cost time. All begin, even if there is no time left.
    ending = finding[0] if len(finding) == 1 else asyncio.gather(*finding)
    try:
        async with asyncio.timeout(left - reserved):
            await ending
    except TimeoutError:
        failures.append(DeadlineExceeded("a detector of the guard did not end in time"))


def _summed_up(best: dict[str, float], least: float, most: int) -> dict[str, Any]:
    """Return the `most` best scores, as `DetectorScores` in JSON."""
    if len(best) > most:
        ordered = sorted(best.items(), key=lambda one: -one[1])
        # The best label that is left out may have the score of one that is not.
        least = max(least, math.nextafter(ordered[most][1], math.inf))
        best = dict(ordered[:most])
    return {"best": best, "least": least} if least else {"best": best}


def _find_in_text(
    detectors: Sequence[AnyDetector],
    text: str,
    read: Sequence[ReadableText],
    found: list[_Finding],
) -> None:
    """Append what detectors without a model find, the strongest actions first.

    Raises:
        ItemRefused: a detector failed; the others have run.
    """
    limit = TimeLimit(_TEXT_SECONDS)
    failures = []
    for detector in sorted(detectors, key=lambda one: -VERDICTS.index(one.action)):
        hits = (hit for one in read for hit in find_in_text(detector, text, one, limit))
        known = set()  # Two readings of a text have most findings in common.
        try:
            for label, span in hits:
                if len(found) > MAX_ENTITIES:
                    return
                if (label, span) not in known:
                    known.add((label, span))
                    found.append(_Finding(detector, label, 1.0, span))
        except ItemRefused as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _incomplete(findings: int, ask: AlgorithmContext) -> Iterator[ItemRefused]:
    if ask.is_truncated:
        yield ItemRefused(
            "input_too_long", "a detector cannot read the whole text; send it in parts"
        )
    if findings > MAX_ENTITIES:
        yield ItemRefused(
            "too_many_findings",
            f"the text has more than {MAX_ENTITIES:,} findings; send it in parts",
        )


async def _find_labels(
    detector: ClassifierDetector,
    served: ModelAlgorithms,
    text: ReadableText,
    parameters: GuardParameters,
    ask: AlgorithmContext,
    failures: list[Exception],
) -> list[_Finding]:
    algorithm = served.algorithms.get(Task.CLASSIFY)
    if not isinstance(algorithm, Labeller):
        raise _invalid(detector, f"needs a classifier, which `{detector.model}` is not")
    thresholds = detector.labels or detector.expected
    _check_labels(detector, algorithm.labels)
    windows = Windows(overlap=parameters.window_overlap(served.info.max_tokens))
    # The score of a whole long text would hide what one window has.
    read = await algorithm.window_scores(text.text, ask, windows)
    if read.failure:
        failures.append(read.failure)
    scores = read.scores
    places = [algorithm.labels.index(label) for label in thresholds]
    least = np.array(list(thresholds.values()), dtype=np.float32)
    chosen = scores[:, places]
    reached = chosen >= least
    hits = list(_expected(scores, reached) if detector.expected else _labelled(reached, places))
    missed = []
    if detector.labels and len(scores):
        best = chosen[0] if len(chosen) == 1 else chosen.max(axis=0)
        missed = [
            _missed(detector, label, score, text)
            for label, score, is_found in zip(
                thresholds, best.tolist(), (best >= least).tolist(), strict=True
            )
            if not is_found
        ]
    if not hits:
        return missed
    where = await read.places(text.text)
    return missed + [
        _Finding(
            detector,
            algorithm.labels[place],
            float(scores[window, place]),
            text.original(where[window]),
        )
        for window, place in hits
    ]


def _missed(detector: AnyDetector, label: str, score: float, text: ReadableText) -> _Finding:
    """Return a label that no window reaches, and its best score."""
    span = text.original((0, len(text.text)))
    return _Finding(detector, label, score, span, is_found=False)


def _labelled(reached: BoolArray, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield each window and each label that it reaches."""
    windows, columns = reached.nonzero()
    for window, column in zip(windows.tolist(), columns.tolist(), strict=True):
        yield window, places[column]


def _expected(scores: FloatArray, reached: BoolArray) -> Iterator[tuple[int, int]]:
    """Yield each window without an expected label, and its best label."""
    for window in np.flatnonzero(~reached.any(axis=1)).tolist():
        yield window, int(scores[window].argmax())


async def _find_similar(
    detector: ExampleDetector,
    served: ModelAlgorithms,
    text: ReadableText,
    windows: Windows,
    vectors: ExampleVectors,
    ask: AlgorithmContext,
) -> list[_Finding]:
    algorithm = served.algorithms.get(Task.EMBED)
    if not isinstance(algorithm, Embed):
        raise _invalid(detector, f"needs a model of plain embeddings; `{detector.model}` is none")
    examples = tuple(itertools.chain(*detector.examples.values()))
    labels = [label for label, texts in detector.examples.items() for _ in texts]
    try:
        known = await vectors.find((algorithm.model, examples), ask)
    except ItemRefused as error:
        raise _invalid(detector, f"has an example that its model cannot read ({error})") from None
    cosines = normalize(await ask.windows(algorithm.model, text.text, windows)) @ known.T
    nearest = cosines.argmax(axis=1)
    scores = np.minimum(cosines.max(axis=1), 1)  # rounding may exceed 1
    hits = np.flatnonzero(scores >= np.float32(detector.threshold)).tolist()
    if not hits:
        if not len(scores):
            return []
        best = int(scores.argmax())
        return [_missed(detector, labels[nearest[best]], float(scores[best]), text)]
    places = partial(ask.window_places, algorithm.model, text.text, windows)
    where = await WindowScores(cosines, places).places(text.text)
    return [
        _Finding(
            detector,
            labels[nearest[window]],
            float(scores[window]),
            text.original(where[window]),
        )
        for window in hits
    ]


async def _find_entities(
    detector: EntityDetector, served: ModelAlgorithms, text: ReadableText, ask: AlgorithmContext
) -> list[_Finding]:
    algorithm = served.algorithms.get(Task.ENTITIES)
    if algorithm is None:
        raise _invalid(detector, f"needs a model of entities, which `{detector.model}` is not")
    if isinstance(algorithm, LabelledSpans):
        # Scores must exceed the threshold there, and reach it here. A label with a high threshold
        # must not take the place of one with a lower threshold.
        least = math.nextafter(min(detector.labels.values()), -1.0)
        asked = EntitiesParameters(
            labels=list(detector.labels), threshold=max(0.0, least), flat=False, multi_label=True
        )
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
            found["score"] >= detector.labels[found["label"]],
        )
        for found in result["entities"]
        if found["label"] in detector.labels
    ]


def _check_labels(detector: ClassifierDetector | EntityDetector, known: Sequence[str]) -> None:
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
