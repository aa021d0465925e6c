"""Checks the labels, templates and choices that callers send with an item."""

from abc import abstractmethod
from typing import Any

from msgspec import UNSET
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithm
from sluicegate.backends.algorithms.labels import Label
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import best_first, rounded
from sluicegate.backends.types import FloatArray
from sluicegate.wire.protocol import MAX_LABELS, RerankParameters, ZeroShotParameters

SLOT = "{}"


class ZeroShotTask(Algorithm):
    """Scores the caller's labels for a text; other algorithms can call it."""

    @abstractmethod
    async def rank(
        self, text: str, parameters: ZeroShotParameters, ask: AlgorithmContext
    ) -> list[Label]:
        """Return the labels, best first.

        With `multi_label`, the scores are independent. Otherwise, the scores add up to 1. But if a
        long text is read in windows whose scores are combined by `max`, the sum may exceed 1.
        """

    @override
    async def run(self, item: str, parameters: ZeroShotParameters, ask: AlgorithmContext) -> Any:
        ranked = await self.rank(item, parameters, ask)
        return {"labels": [label.as_json() for label in ranked]}


def refuse_instruction(model: str, parameters: RerankParameters) -> None:
    """Refuse an instruction for a model that reads none.

    Raises:
        ItemRefused: the parameters have an instruction.
    """
    if parameters.instruction is not UNSET:
        raise ItemRefused(
            "bad_instruction", f"`{model}` reads no instruction; leave out `instruction`"
        )


def refuse_weights(model: str, parameters: RerankParameters) -> None:
    """Refuse weights of outputs for a model that ranks by one score.

    Raises:
        ItemRefused: the parameters have weights.
    """
    if parameters.weights is not UNSET:
        raise ItemRefused(
            "bad_output",
            f"`{model}` ranks by one score; leave out `weights`, or use a model with several "
            "outputs",
        )


def hypotheses(parameters: ZeroShotParameters) -> list[str]:
    """Return the hypotheses: the template with each label in place of `{}`.

    Raises:
        ItemRefused: labels are missing, empty, repeated or too many, or the template does not
            contain `{}` exactly once.
    """
    check_labels(parameters.labels)
    if parameters.hypothesis_template.count(SLOT) != 1:
        raise ItemRefused(
            "bad_template", "`hypothesis_template` must contain `{}` exactly once, for the label"
        )
    return [parameters.hypothesis_template.replace(SLOT, label) for label in parameters.labels]


def check_labels(
    labels: list[str], model: str = "", most: int = MAX_LABELS, *, field: str = "labels"
) -> None:
    """Raise `ItemRefused` if labels are missing, empty, repeated, or more than a model takes."""
    if not labels:
        raise ItemRefused("no_labels", f"`{field}` is empty; send at least one")
    if len(labels) > MAX_LABELS:
        raise ItemRefused("too_many_labels", f"`{field}` has more than {MAX_LABELS} entries")
    if len(set(labels)) != len(labels):
        raise ItemRefused("duplicate_labels", f"`{field}` contains a label twice")
    if not all(label.strip() for label in labels):
        raise ItemRefused("empty_label", f"`{field}` contains an empty label")
    if len(labels) > most:
        raise ItemRefused(
            "too_many_labels",
            f"`{field}` has {len(labels)} entries, but `{model}` takes at most {most}; send fewer",
        )


def check_choices(choices: list[str]) -> None:
    """Raise `ItemRefused` if there are no choices or too many. Equal choices are allowed."""
    if not choices:
        raise ItemRefused("no_choices", "`choices` is empty; send at least one choice")
    if len(choices) > MAX_LABELS:
        raise ItemRefused("too_many_choices", f"`choices` has more than {MAX_LABELS} entries")


def chosen(scores: FloatArray) -> Any:
    """Return the index of the choice with the highest score, and all scores."""
    ((choice, _),) = best_first(scores, 1)
    return {"choice": choice, "scores": rounded(scores)}
