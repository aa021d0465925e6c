"""Converts bodies of Hugging Face's tasks to native requests, and native results to responses.

A body has `inputs`. A task's parameters are fields beside `inputs`, or under `parameters`.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.schemas import (
    AnswerBody,
    Body,
    ClassifyBody,
    EmbedBody,
    EntitiesBody,
    Positive,
    RerankBody,
    ZeroShotBody,
)
from sluicegate.gateway.api.vectors import floats_as_json
from sluicegate.gateway.dialects.base import texts_only
from sluicegate.gateway.dialects.stored_results import (
    answers_in,
    encoded_list,
    entities_in,
    labels_in,
    ranking,
    vector_in,
)
from sluicegate.gateway.types import Answer, InferenceRequest
from sluicegate.wire.protocol import AnswerCount, AnswerItem, AnswerTokens, Overlap, RowTokens, Task

_encode = msgspec.json.encode
_Direction = Annotated[str, msgspec.Meta(pattern="^[Rr]ight$")]


class TaskInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the inputs and parameters of one task."""

    def items(self) -> list[Any]:
        """Return the items. Their number is checked before the native request is made."""
        raise NotImplementedError

    def native(self, model: str) -> Body:
        """Return the equivalent body of the native route."""
        raise NotImplementedError

    def write(self, answer: Answer) -> bytes:
        """Return the response as JSON."""
        raise NotImplementedError


class ModelCall(msgspec.Struct, frozen=True):
    """Holds a model's name from the path, and the inputs for one of its tasks."""

    model: str
    inputs: TaskInputs

    def items(self) -> list[Any]:
        """Return the items."""
        return self.inputs.items()

    def request(self, model: str) -> InferenceRequest:
        """Return the native request for this call.

        The argument `model` is ignored. It comes from the path, and may contain the model's owner.
        """
        return self.inputs.native(self.model).request(self.model)


class TextPairItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds two texts that the model reads together."""

    text: str
    """The first text."""
    text_pair: str
    """The second text."""


class SimilarityItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds a sentence, and the sentences to compare with it."""

    source_sentence: str
    """The sentence."""
    sentences: list[str]
    """The other sentences."""


class RankingItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds a query, and the texts to order."""

    query: str
    """The query with which texts are compared."""
    texts: list[str]
    """The texts."""


class TextClassificationInputs(TaskInputs, frozen=True, kw_only=True):
    """Holds texts to label with a trained classifier."""

    inputs: str | TextPairItem | list[str | TextPairItem]
    top_k: Positive | None = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None

    @override
    def items(self) -> list[Any]:
        return self.inputs if isinstance(self.inputs, list) else [self.inputs]

    @override
    def native(self, model: str) -> Body:
        texts = [
            (one.text, one.text_pair) if isinstance(one, TextPairItem) else one
            for one in self.items()
        ]
        return ClassifyBody(
            model=model, input=texts, top_k=self.top_k, function=self.function_to_apply
        )

    @override
    def write(self, answer: Answer) -> bytes:
        return encoded_list(labels_in(outcome.result) for outcome in answer.outcomes)


class _Texts(TaskInputs, frozen=True, kw_only=True):
    """Holds a text or a list of texts. The response is one result, or a list of results."""

    inputs: str | list[str]

    @override
    def items(self) -> list[Any]:
        return self.inputs if isinstance(self.inputs, list) else [self.inputs]

    def _listed(self, answer: Answer, write: Callable[[bytes], Any]) -> bytes:
        if not isinstance(self.inputs, list):
            return _encode(write(answer.outcomes[0].result))
        return encoded_list(write(outcome.result) for outcome in answer.outcomes)


class ZeroShotInputs(_Texts, frozen=True, kw_only=True):
    """Holds texts to label with the caller's labels."""

    candidate_labels: list[str]
    multi_label: bool = False
    # This is the default of the library `transformers`, and differs from the native route's
    # default.
    hypothesis_template: str = "This example is {}."

    @override
    def native(self, model: str) -> Body:
        return ZeroShotBody(
            model=model,
            input=list(self.items()),
            labels=self.candidate_labels,
            multi_label=self.multi_label,
            hypothesis_template=self.hypothesis_template,
        )

    @override
    def write(self, answer: Answer) -> bytes:
        return self._listed(answer, labels_in)


class TokenClassificationInputs(_Texts, frozen=True, kw_only=True):
    """Holds texts to search for named entities."""

    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = "simple"
    candidate_labels: list[str] | None = None
    """The types of entities to find; for models that find any type, such as GLiNER."""
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """With `candidate_labels`: the score that an entity must exceed; 0.5 where it is left out."""
    multi_label: bool | None = None
    """With `candidate_labels`: whether the same words may be entities of several types."""

    @override
    def native(self, model: str) -> Body:
        return EntitiesBody(
            model=model,
            input=list(self.items()),
            aggregation=self.aggregation_strategy,
            labels=self.candidate_labels,
            threshold=self.threshold,
            multi_label=self.multi_label,
        )

    @override
    def write(self, answer: Answer) -> bytes:
        return self._listed(answer, self._entities)

    def _entities(self, result: bytes) -> list[dict[str, object]]:
        label = "entity" if self.aggregation_strategy == "none" else "entity_group"
        return [
            {
                label: one.label,
                "score": one.score,
                "word": one.text,
                "start": one.start,
                "end": one.end,
            }
            for one in entities_in(result)
        ]


class QuestionAnsweringInputs(TaskInputs, frozen=True, kw_only=True):
    """Holds questions, each with the text that has its answer."""

    inputs: AnswerItem | list[AnswerItem]
    top_k: AnswerCount = 1
    max_answer_len: AnswerTokens = 15
    max_seq_len: RowTokens | None = None
    doc_stride: Overlap | None = None
    max_question_len: Positive | None = None
    """Ignored, as the library `transformers` does: a question is never truncated."""
    handle_impossible_answer: bool = False
    """Whether an empty text, which stands for "no answer", competes with the answers."""
    align_to_words: bool = True

    @override
    def items(self) -> list[Any]:
        return self.inputs if isinstance(self.inputs, list) else [self.inputs]

    @override
    def native(self, model: str) -> Body:
        return AnswerBody(
            model=model,
            input=self.items(),
            top_k=self.top_k,
            max_answer_tokens=self.max_answer_len,
            max_row_tokens=self.max_seq_len,
            overlap=self.doc_stride,
            align_to_words=self.align_to_words,
        )

    @override
    def write(self, answer: Answer) -> bytes:
        if not isinstance(self.inputs, list):
            return _encode(self._answers(answer.outcomes[0].result))
        return encoded_list(self._answers(outcome.result) for outcome in answer.outcomes)

    def _answers(self, result: bytes) -> Any:
        """Return the answers of an item; as in the library, a single one is not in a list."""
        found = answers_in(result, top_k=self.top_k, or_none=self.handle_impossible_answer)
        return found[0] if len(found) == 1 else found


class FeatureExtractionInputs(TaskInputs, frozen=True, kw_only=True):
    """Holds texts to turn into vectors."""

    inputs: str | list[str | int | list[int]]
    """A text, or a list of texts. A request with token ids is refused."""
    normalize: bool = True
    """Whether to scale vectors to length 1."""
    dimensions: Positive | None = None
    """Shortens each vector to this many dimensions, before the vector is scaled."""
    prompt_name: str | None = None
    """The model's prompt to put before each text, a name of its `prompts` in `GET /v1/models`."""
    truncate: bool = True
    """Whether to truncate texts longer than the model reads. If not, such texts are refused."""
    truncation_direction: _Direction = "right"
    """Must be `right`. Sluicegate truncates texts only at the end."""
    encoding_format: Literal["float"] = "float"
    """Must be `float`: vectors are lists of numbers."""

    @override
    def items(self) -> list[Any]:
        return self.inputs if isinstance(self.inputs, list) else [self.inputs]

    @override
    def native(self, model: str) -> Body:
        return EmbedBody(
            model=model,
            input=texts_only(self.items(), "inputs"),
            normalize=self.normalize,
            dimensions=self.dimensions,
            prompt_name=self.prompt_name,
            truncate=self.truncate,
        )

    @override
    def write(self, answer: Answer) -> bytes:
        vectors = vectors_of(answer)
        return vectors if isinstance(self.inputs, list) else vectors[1:-1]


class SimilarityInputs(TaskInputs, frozen=True, kw_only=True):
    """Holds sentences to compare by the cosine of their vectors."""

    inputs: SimilarityItem
    """The sentences."""
    truncate: bool = True
    """Whether to truncate texts longer than the model reads. If not, such texts are refused."""
    truncation_direction: _Direction = "right"
    """Must be `right`. Sluicegate truncates texts only at the end."""

    @override
    def items(self) -> list[Any]:
        # If there are no sentences to compare, the request has no item.
        sentences = self.inputs.sentences
        return [self.inputs.source_sentence, *sentences] if sentences else []

    @override
    def native(self, model: str) -> Body:
        return EmbedBody(model=model, input=self.items(), truncate=self.truncate)

    @override
    def write(self, answer: Answer) -> bytes:
        source, *others = [vector_in(outcome.result) for outcome in answer.outcomes]
        return _encode([_dot(source, other) for other in others])


class TextRankingInputs(TaskInputs, frozen=True, kw_only=True):
    """Holds texts to order by relevance to a query."""

    inputs: RankingItem
    truncate: bool = True
    """Whether to truncate texts longer than the model reads. If not, such texts are refused."""
    return_text: bool = False

    @override
    def items(self) -> list[Any]:
        return self.inputs.texts

    @override
    def native(self, model: str) -> Body:
        asked = self.inputs
        return RerankBody(
            model=model, query=asked.query, documents=asked.texts, truncate=self.truncate
        )

    @override
    def write(self, answer: Answer) -> bytes:
        texts = self.inputs.texts if self.return_text else None
        return _encode(ranked_texts(answer, texts))


def _item_types(kind: type[TaskInputs]) -> list[type[msgspec.Struct]]:
    """Return the types of objects that the field `inputs` takes."""
    (inputs,) = (field.type for field in msgspec.structs.fields(kind) if field.name == "inputs")
    types = get_args(inputs) or (inputs,)
    return [each for each in types if isinstance(each, type) and issubclass(each, msgspec.Struct)]


PIPELINES: dict[str, tuple[Task, type[TaskInputs]]] = {
    "text-classification": (Task.CLASSIFY, TextClassificationInputs),
    "zero-shot-classification": (Task.ZERO_SHOT, ZeroShotInputs),
    "token-classification": (Task.ENTITIES, TokenClassificationInputs),
    "question-answering": (Task.ANSWER, QuestionAnsweringInputs),
    "feature-extraction": (Task.EMBED, FeatureExtractionInputs),
    "sentence-similarity": (Task.EMBED, SimilarityInputs),
    "text-ranking": (Task.RERANK, TextRankingInputs),
}
"""For each of Hugging Face's task names, the gateway's task and the type of the inputs."""
PIPELINE_BY_FIELD = {
    item.__struct_fields__[0]: name
    for name, (_, kind) in PIPELINES.items()
    for item in _item_types(kind)
}
"""The task names by the first field of objects in `inputs`, which identifies the task."""


def vectors_of(answer: Answer) -> bytes:
    """Return a JSON list of the vectors."""
    return b"[%b]" % b",".join([floats_as_json(outcome.result) for outcome in answer.outcomes])


def ranked_texts(answer: Answer, texts: Sequence[str] | None) -> list[dict[str, object]]:
    """Return the index and the score of each text, from the highest score to the lowest.

    If `texts` is given, the result also has each text.
    """
    return [
        {"index": index, "score": score} | ({} if texts is None else {"text": texts[index]})
        for index, score in ranking(answer)
    ]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum([a * b for a, b in zip(one, other, strict=True)])
