"""Answers with a model that reads pairs of texts: entailment, multiple choice, relevance.

With the same model weights, results equal the results of the reference libraries: the pipeline
`zero-shot-classification` and `AutoModelForMultipleChoice` of `transformers`, and `CrossEncoder` of
`sentence-transformers`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import UNSET
from typing_extensions import override

from sluicegate.backends.algorithms.base import (
    Algorithms,
    ModelAlgorithms,
    QueryAlgorithm,
    Recipe,
    WindowedAlgorithm,
    find_algorithm,
    only_algorithm,
)
from sluicegate.backends.algorithms.classify import Classify
from sluicegate.backends.algorithms.labels import Label, rank
from sluicegate.backends.algorithms.questions import (
    ZeroShotTask,
    check_choices,
    chosen,
    hypotheses,
    refuse_instruction,
    refuse_weights,
)
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import apply_function, exact, softmax
from sluicegate.backends.pipelines.windows import Windows
from sluicegate.backends.repository.manifest import RankingTemplate
from sluicegate.backends.types import FloatArray, Text
from sluicegate.wire.protocol import (
    ChooseItem,
    ChooseParameters,
    Function,
    RerankParameters,
    Task,
    ZeroShotParameters,
)

_ENTAILMENT = "entail"


class EntailmentZeroShot(ZeroShotTask, WindowedAlgorithm):
    """Scores each of the caller's labels by whether the text entails the label's hypothesis.

    See Yin, Hay and Roth 2019 (arXiv:1909.00161). The model reads one pair per label: the text and
    the hypothesis. The scores are a softmax over the entailment logits of all labels. With
    `multi_label`, or for a single label, each score is a softmax over only two logits: entailment
    and contradiction of this label.
    """

    def __init__(self, *, model: str, labels: Sequence[str]) -> None:
        """`labels` are the labels of the model; one of them must begin with `entail`.

        Raises:
            ValueError: no label begins with `entail`.
        """
        self.model = model
        found = [i for i, label in enumerate(labels) if label.lower().startswith(_ENTAILMENT)]
        if not found:
            raise ValueError(f"none of the labels {', '.join(labels)} begins with `entail`")
        self._entailment = found[0]
        # As in the reference pipeline, contradiction is the first label, or the last label if the
        # first label is entailment.
        self._contradiction = -1 if self._entailment == 0 else 0

    @override
    async def rank(
        self, text: str, parameters: ZeroShotParameters, ask: AlgorithmContext
    ) -> list[Label]:
        filled = self._read(text, parameters)
        logits = await ask.pairs(self.model, text, filled, cut_first_only=True)
        return rank(parameters.labels, self._scores(logits, parameters))

    @override
    async def window_scores(
        self, item: str, parameters: ZeroShotParameters, ask: AlgorithmContext, windows: Windows
    ) -> FloatArray:
        filled = self._read(item, parameters)
        logits = await ask.pair_windows(self.model, item, filled, windows, text_first=True)
        return self._scores(logits, parameters)

    def _read(self, text: str, parameters: ZeroShotParameters) -> list[str]:
        filled = hypotheses(parameters)
        if not text.strip():
            raise ItemRefused("empty_input", "the text is empty; send text")
        return filled

    def _scores(self, logits: FloatArray, parameters: ZeroShotParameters) -> FloatArray:
        """Return the scores of labels from `logits` of shape (..., labels, model outputs)."""
        entailed = logits[..., self._entailment]
        if parameters.multi_label or len(parameters.labels) == 1:
            against = np.stack([logits[..., self._contradiction], entailed], axis=-1)
            scores: FloatArray = softmax(against)[..., 1]
            return scores
        return softmax(entailed)


class MultipleChoice(WindowedAlgorithm):
    """Picks the choice whose pair with the prompt has the highest logit (Devlin et al. 2019)."""

    def __init__(self, *, model: str) -> None:
        self.model = model

    @override
    async def run(
        self, item: ChooseItem, parameters: ChooseParameters, ask: AlgorithmContext
    ) -> Any:
        check_choices(item.choices)
        logits = await ask.pairs(self.model, item.prompt, item.choices)
        return chosen(softmax(logits[:, 0]))

    @override
    async def window_scores(
        self,
        item: ChooseItem,
        parameters: ChooseParameters,
        ask: AlgorithmContext,
        windows: Windows,
    ) -> FloatArray:
        check_choices(item.choices)
        prompt, choices = item.prompt, item.choices
        logits = await ask.pair_windows(self.model, prompt, choices, windows, text_first=True)
        return softmax(logits[..., 0])


class CrossEncode(QueryAlgorithm, WindowedAlgorithm):
    """Scores a document for a query with a model that reads both (Nogueira and Cho 2019).

    For a model with one output, `function` turns the logit into the score. For a model with
    several labels, the score is the probability of the last label. A model with a `template` reads
    an instruction, too.
    """

    version = 2

    def __init__(
        self,
        *,
        model: str,
        function: Function = "sigmoid",
        template: RankingTemplate | None = None,
    ) -> None:
        self.model = model
        self._function = function
        self._template = template

    @override
    def texts(self, item: str, parameters: RerankParameters) -> Sequence[Text]:
        return (self._pair(item, parameters),)

    def _pair(self, document: str, parameters: RerankParameters) -> tuple[str, str]:
        refuse_weights(self.model, parameters)
        instruction = None if parameters.instruction is UNSET else parameters.instruction
        if self._template is None:
            refuse_instruction(self.model, parameters)
            return parameters.query, document
        if not parameters.query.strip() and not document.strip():
            raise ItemRefused("empty_input", "query and document are empty; send text")
        return self._template.fill(
            query=parameters.query, document=document, instruction=instruction
        )

    @override
    def answer(self, vectors: FloatArray, parameters: RerankParameters) -> Any:
        return {"score": exact(self._scores(vectors)[0][-1])}

    @override
    async def window_scores(
        self, item: str, parameters: RerankParameters, ask: AlgorithmContext, windows: Windows
    ) -> FloatArray:
        query, document = self._pair(item, parameters)
        logits = await ask.pair_windows(self.model, document, [query], windows, text_first=False)
        return self._scores(logits[:, 0])

    def _scores(self, logits: FloatArray) -> FloatArray:
        return apply_function(logits, self._function if logits.shape[1] == 1 else "softmax")


class EntailmentRecipe(Recipe, frozen=True):
    """Builds zero-shot classification over a classifier of pairs with a label `entailment`."""

    @override
    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        judge = _classifier(below)
        try:
            return {Task.ZERO_SHOT: EntailmentZeroShot(model=judge.model, labels=judge.labels)}
        except ValueError as error:
            raise ValueError(f"cannot use `{judge.model}`: {error}") from None


class MultipleChoiceRecipe(Recipe, frozen=True):
    """Builds multiple choice over a classifier of pairs."""

    @override
    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        return {Task.CHOOSE: MultipleChoice(model=_classifier(below).model)}


class CrossEncoderRecipe(Recipe, frozen=True):
    """Builds a cross-encoder over a classifier of pairs."""

    @override
    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        judge = _classifier(below)
        # Prefer the model's own cross-encoder, which knows the `rerank_function` of the model.
        own = find_algorithm(below, CrossEncode)
        return {Task.RERANK: own or CrossEncode(model=judge.model)}


def _classifier(below: Sequence[ModelAlgorithms]) -> Classify:
    return only_algorithm(below, Classify, "a classifier with its own graph or head")
