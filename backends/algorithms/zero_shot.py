"""Labels and choices of the caller's, by embedding: no training, one row per text."""

from typing import Any

import numpy as np
from typing_extensions import override

from backends.algorithms.base import Algorithm
from backends.algorithms.classify import Label, rank
from backends.errors import ItemRefused
from backends.pipelines.ask import Ask
from backends.pipelines.scores import best_first, normalize, rounded, sigmoid, softmax
from backends.protocol import ChooseItem, ChooseParameters, ZeroShotParameters
from backends.types import FloatArray

# Chosen on Banking77 by log loss; see the model's page.
TEMPERATURE = np.float32(0.05)
# Halfway between the cosines of right and of wrong labels.
MULTI_LABEL_CENTRE = np.float32(0.1)
MAX_LABELS = 256
_SLOT = "{}"


class ZeroShot(Algorithm):
    """Scores the caller's labels by the nearness of their filled template to the text.

    What the template says with no label in it is taken out of every label's vector first, so
    that labels differ by their own words alone. Labels are rows like any other: known after the
    first time.
    """

    def __init__(self, *, model: str) -> None:
        self._model = model

    @property
    @override
    def version(self) -> int:
        return 1

    @override
    async def run(self, item: str, parameters: ZeroShotParameters, ask: Ask) -> Any:
        ranked = await self.rank(
            item,
            ask,
            labels=parameters.labels,
            template=parameters.hypothesis_template,
            multi_label=parameters.multi_label,
        )
        return {"labels": [label.as_json() for label in ranked]}

    async def rank(
        self, text: str, ask: Ask, *, labels: list[str], template: str, multi_label: bool
    ) -> list[Label]:
        """Return the labels, best first, for an algorithm above."""
        _check_labels(labels)
        if template.count(_SLOT) != 1:
            raise ItemRefused(
                "bad_template", "`hypothesis_template` must hold `{}` once, for the label"
            )
        null = [template.replace(_SLOT, "")] if template.replace(_SLOT, "").strip() else []
        filled = [template.replace(_SLOT, label) for label in labels]
        vectors = normalize(await ask(self._model, [text, *filled, *null]))
        directions = vectors[1 : 1 + len(labels)]
        if null:
            directions = _without(directions, vectors[-1])
        cosines: FloatArray = directions @ vectors[0]
        if multi_label:
            return rank(labels, sigmoid((cosines - MULTI_LABEL_CENTRE) / TEMPERATURE))
        return rank(labels, softmax(cosines / TEMPERATURE))


class Choose(Algorithm):
    """Picks the option nearest to a prompt."""

    def __init__(self, *, model: str) -> None:
        self._model = model

    @property
    @override
    def version(self) -> int:
        return 1

    @override
    async def run(self, item: ChooseItem, parameters: ChooseParameters, ask: Ask) -> Any:
        if not item.choices:
            raise ItemRefused("no_choices", "`choices` is empty; send what to choose from")
        if len(item.choices) > MAX_LABELS:
            raise ItemRefused("too_many_choices", f"`choices` holds more than {MAX_LABELS}")
        vectors = normalize(await ask(self._model, [item.prompt, *item.choices]))
        scores = softmax((vectors[1:] @ vectors[0]) / TEMPERATURE)
        return {"choice": best_first(scores, 1)[0], "scores": rounded(scores)}


def _check_labels(labels: list[str]) -> None:
    if not labels:
        raise ItemRefused("no_labels", "`labels` is empty; send at least one")
    if len(labels) > MAX_LABELS:
        raise ItemRefused("too_many_labels", f"`labels` holds more than {MAX_LABELS}")
    if len(set(labels)) != len(labels):
        raise ItemRefused("duplicate_labels", "`labels` holds one of them twice")
    if not all(label.strip() for label in labels):
        raise ItemRefused("empty_label", "`labels` holds an empty one")


def _without(vectors: FloatArray, null: FloatArray) -> FloatArray:
    """Return unit vectors at right angles to `null`; one that says nothing else becomes zero."""
    rest = vectors - (vectors @ null)[:, None] * null
    rest[np.linalg.norm(rest, axis=-1) < 1e-6] = 0.0  # noqa: PLR2004 - nothing but rounding
    return normalize(rest)
