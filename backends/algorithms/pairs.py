"""Answers by a model that reads pairs of texts: entailment, choices, relevance.

Each equals its reference on the same weights: the pipeline `zero-shot-classification` and
`AutoModelForMultipleChoice` of `transformers`, and `CrossEncoder` of `sentence-transformers`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from backends.algorithms.base import Algorithm, QueryAlgorithm
from backends.algorithms.classify import Label, rank
from backends.algorithms.questions import ZeroShotTask, check_choices, hypotheses
from backends.errors import ItemRefused
from backends.pipelines.ask import AlgorithmContext
from backends.pipelines.scores import apply_function, best_first, rounded, softmax
from backends.protocol import (
    ChooseItem,
    ChooseParameters,
    Function,
    RerankParameters,
    ZeroShotParameters,
)
from backends.types import FloatArray, Text

_ENTAILMENT = "entail"


class EntailmentZeroShot(ZeroShotTask):
    """Scores the caller's labels by whether the text entails the filled template.

    Yin, Hay and Roth 2019 (arXiv:1909.00161). One row per label; the text is tokenized once.
    Several labels compete by their logits of entailment; a label alone, or with `multi_label`,
    is judged by entailment against contradiction.
    """

    def __init__(self, *, model: str, labels: Sequence[str]) -> None:
        """`labels` are the model's own, of which one begins with `entail`.

        Raises:
            ValueError: none does; the message says so.
        """
        self._model = model
        found = [i for i, label in enumerate(labels) if label.lower().startswith(_ENTAILMENT)]
        if not found:
            raise ValueError(f"none of the labels {', '.join(labels)} begins with `entail`")
        self._entailment = found[0]
        # As the pipeline takes it: the other end of the labels.
        self._contradiction = -1 if self._entailment == 0 else 0

    @override
    async def rank(
        self, text: str, parameters: ZeroShotParameters, ask: AlgorithmContext
    ) -> list[Label]:
        labels, filled = parameters.labels, hypotheses(parameters)
        if not text.strip():
            raise ItemRefused("empty_input", "the text is empty; send some")
        logits = await ask.pairs(self._model, text, filled, cut_first_only=True)
        entailed = logits[:, self._entailment]
        if parameters.multi_label or len(labels) == 1:
            against = np.stack([logits[:, self._contradiction], entailed], axis=-1)
            return rank(labels, softmax(against)[:, 1])
        return rank(labels, softmax(entailed))


class MultipleChoice(Algorithm):
    """Picks the choice whose row with the prompt has the highest logit (Devlin et al. 2019)."""

    def __init__(self, *, model: str) -> None:
        self._model = model

    @override
    async def run(
        self, item: ChooseItem, parameters: ChooseParameters, ask: AlgorithmContext
    ) -> Any:
        check_choices(item.choices)
        logits = await ask.pairs(self._model, item.prompt, item.choices)
        scores = softmax(logits[:, 0])
        return {"choice": best_first(scores, 1)[0], "scores": rounded(scores)}


class CrossEncode(QueryAlgorithm):
    """Scores a document for a query by a model that reads both (Nogueira and Cho 2019).

    The `function` makes the score of one logit; of several labels it is the probability of the
    last.
    """

    def __init__(self, *, model: str, function: Function = "sigmoid") -> None:
        self.model = model
        self._function = function

    @override
    def texts(self, item: str, parameters: RerankParameters) -> Sequence[Text]:
        return ((parameters.query, item),)

    @override
    def answer(self, vectors: FloatArray, parameters: RerankParameters) -> Any:
        function = self._function if vectors.shape[1] == 1 else "softmax"
        scores = apply_function(vectors[0], function)
        return {"score": rounded(scores)[-1]}
