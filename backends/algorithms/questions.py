"""Checks what callers send with an item: labels, templates and choices."""

from abc import abstractmethod
from typing import Any

from typing_extensions import override

from backends.algorithms.base import Algorithm
from backends.algorithms.classify import Label
from backends.errors import ItemRefused
from backends.pipelines.ask import AlgorithmContext
from backends.pipelines.scores import best_first, rounded
from backends.protocol import ZeroShotParameters
from backends.types import FloatArray

MAX_LABELS = 256
SLOT = "{}"


class ZeroShotTask(Algorithm):
    """Scores labels of the caller's for a text; algorithms build on it."""

    @abstractmethod
    async def rank(
        self, text: str, parameters: ZeroShotParameters, ask: AlgorithmContext
    ) -> list[Label]:
        """Return the labels, best first.

        With `multi_label` each is judged by itself, else their scores add up to 1 (to more where
        the best of several windows counts).
        """

    @override
    async def run(self, item: str, parameters: ZeroShotParameters, ask: AlgorithmContext) -> Any:
        ranked = await self.rank(item, parameters, ask)
        return {"labels": [label.as_json() for label in ranked]}


def hypotheses(parameters: ZeroShotParameters) -> list[str]:
    """Return the template with each label in the place of its `{}`.

    Raises:
        ItemRefused: labels are equal, missing, empty or too many, or the template does not hold
            `{}` exactly once.
    """
    labels = parameters.labels
    if not labels:
        raise ItemRefused("no_labels", "`labels` is empty; send at least one")
    if len(labels) > MAX_LABELS:
        raise ItemRefused("too_many_labels", f"`labels` holds more than {MAX_LABELS}")
    if len(set(labels)) != len(labels):
        raise ItemRefused("duplicate_labels", "`labels` holds one of them twice")
    if not all(label.strip() for label in labels):
        raise ItemRefused("empty_label", "`labels` holds an empty one")
    if parameters.hypothesis_template.count(SLOT) != 1:
        raise ItemRefused(
            "bad_template", "`hypothesis_template` must hold `{}` once, for the label"
        )
    return [parameters.hypothesis_template.replace(SLOT, label) for label in labels]


def check_choices(choices: list[str]) -> None:
    """Refuse no choices, or too many; equal ones are answered alike."""
    if not choices:
        raise ItemRefused("no_choices", "`choices` is empty; send what to choose from")
    if len(choices) > MAX_LABELS:
        raise ItemRefused("too_many_choices", f"`choices` holds more than {MAX_LABELS}")


def chosen(scores: FloatArray) -> Any:
    """Return the answer that picks the choice of the highest score."""
    ((choice, _),) = best_first(scores, 1)
    return {"choice": choice, "scores": rounded(scores)}
