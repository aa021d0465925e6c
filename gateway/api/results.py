"""Describes response bodies of inference routes for the OpenAPI document.

Results themselves travel as stored bytes.
"""

from typing import Annotated, Any, ClassVar

import msgspec

from sluicegate.gateway.types import Usage
from sluicegate.wire.settings import stated


class LabelScore(msgspec.Struct, frozen=True, kw_only=True):
    """A label and how sure the model is of it."""

    label: str
    """One of the model's labels, or of the caller's."""
    score: float
    """More is surer; a probability where the model's function makes one."""


class LabelsResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Labels, best first."""

    labels: list[LabelScore]
    """The best first."""
    truncated: bool = False
    """The model read a part of the text only."""


class ChoiceResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The index of the chosen option, and each option's score."""

    choice: int
    """Its place in `choices`, from 0."""
    scores: list[float]
    """One for each of the `choices`, in their order."""
    truncated: bool = False
    """The model read a part of the text only."""


class SparseVector(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of the vocabulary that have a weight."""

    indices: list[int]
    """Their numbers in the vocabulary, in order."""
    values: list[float]
    """Their weights."""


class EmbeddingResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outputs of a text that were asked for."""

    embedding: list[float] | str | None = None
    """As many numbers as the model has dimensions, or were asked for; base64 where asked for."""
    sparse: SparseVector | None = None
    """The weights of words."""
    sparse_tokens: list[str] | None = None
    """How the vocabulary writes the tokens of `sparse`, with `return_tokens`."""
    multi_vector: list[list[float] | str] | None = None
    """A vector for each token that counts, or for each group of merged tokens."""
    multi_vector_tokens: list[str] | None = None
    """How the vocabulary writes the tokens of `multi_vector`, with `return_tokens`."""
    truncated: bool = False
    """The model read a part of the text only."""


class RankedDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A document's place in the request, its score, and its text when asked for."""

    index: int
    """Its place in the request's `documents`, from 0."""
    score: float
    """More is a better answer to the query."""
    document: str | None = None
    """Its text, with `return_documents`."""
    truncated: bool = False
    """The model read a part of the text only."""


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """A named entity: `start` and `end` are character offsets into the text."""

    label: str
    """What kind of thing it is."""
    score: float
    """How sure the model is of it."""
    text: str
    """How it is written."""
    start: int
    """Its first character."""
    end: int
    """The character after its last."""


class RelationEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A head or a tail: `start` and `end` are character offsets into the text."""

    score: float
    """How sure the model is of it."""
    text: str
    """How it is written."""
    start: int
    """Its first character."""
    end: int
    """The character after its last."""


class Relation(msgspec.Struct, frozen=True, kw_only=True):
    """A relation, such as `lives in` from a person to a city."""

    label: str
    """The type of the relation."""
    head: RelationEnd
    """Where the relation begins."""
    tail: RelationEnd
    """Where the relation leads."""


class EntitiesResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The entities of a text, in order."""

    entities: list[Entity]
    """In the order of the text."""
    relations: list[Relation] | None = None
    """In the order of the types in `relations` of the request; left out without it."""


class AnswerSpan(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: `start` and `end` are character offsets into the `context`."""

    answer: str
    """How the text puts it."""
    score: float
    """How sure the model is of it."""
    start: int
    """Its first character."""
    end: int
    """The character after its last."""


class SpansResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to a question, best first; none if no part of the text can be one."""

    answers: list[AnswerSpan]
    """The best first."""
    no_answer_score: float
    """How sure the model is that the text has no answer; it compares with the answers' scores."""


class ItemError(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why an item has no answer (with `"on_error": "continue"`)."""

    code: Annotated[str, stated(pattern="^[a-z_]+$")]
    """Stable; what programs should look at."""
    detail: str
    """What was wrong, and what to do."""


class FailedResult(msgspec.Struct, frozen=True, kw_only=True):
    """An item that has no answer."""

    error: ItemError
    """Why."""


class FailedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document that has no score; it comes after those that have one."""

    index: int
    """Its place in the request's `documents`."""
    error: ItemError
    """Why."""


class InferenceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: the model and revision that gave it, a result per item, what it used."""

    model: str
    """The model that answered."""
    revision: str
    """The digest of the files that shape the model's answers."""
    results: list[Any]
    """One for each item, in the order of the items."""
    usage: Usage
    """What the request used, as it is billed."""

    each_result: ClassVar[tuple[Any, ...]] = ()
    """The types of a result, in place of `Any`."""
    example: ClassVar[list[Any]]
    """Results of the request body's `example`."""


class ClassifyAnswer(InferenceAnswer, frozen=True, kw_only=True):
    """Labels of each text."""

    each_result: ClassVar = (LabelsResult, FailedResult)
    example: ClassVar = [
        {
            "labels": [
                {"label": "positive", "score": 0.98},
                {"label": "negative", "score": 0.02},
            ]
        },
        {
            "labels": [
                {"label": "negative", "score": 0.97},
                {"label": "positive", "score": 0.03},
            ]
        },
    ]


class ZeroShotAnswer(InferenceAnswer, frozen=True, kw_only=True):
    """The caller's labels for each text."""

    each_result: ClassVar = (LabelsResult, FailedResult)
    example: ClassVar = [
        {"labels": [{"label": "sports", "score": 0.91}, {"label": "business", "score": 0.09}]}
    ]


class ChooseAnswer(InferenceAnswer, frozen=True, kw_only=True):
    """The choice for each prompt."""

    each_result: ClassVar = (ChoiceResult, FailedResult)
    example: ClassVar = [{"choice": 1, "scores": [0.2, 0.8]}]


class RerankAnswer(InferenceAnswer, frozen=True, kw_only=True):
    """The documents, best first."""

    each_result: ClassVar = (RankedDocument, FailedDocument)
    example: ClassVar = [
        {"index": 0, "score": 0.71, "document": "Change your PIN at any cash machine."},
        {"index": 1, "score": 0.05, "document": "We are hiring."},
    ]


class EntitiesAnswer(InferenceAnswer, frozen=True, kw_only=True):
    """The entities of each text."""

    each_result: ClassVar = (EntitiesResult, FailedResult)
    example: ClassVar = [
        {
            "entities": [
                {"label": "PER", "score": 0.99, "text": "Angela Merkel", "start": 0, "end": 13}
            ]
        }
    ]


class SpansAnswer(InferenceAnswer, frozen=True, kw_only=True):
    """The answers to each question."""

    each_result: ClassVar = (SpansResult, FailedResult)
    example: ClassVar = [
        {
            "answers": [{"answer": "The striker", "score": 0.93, "start": 0, "end": 11}],
            "no_answer_score": 0.01,
        }
    ]


class EmbedAnswer(InferenceAnswer, frozen=True, kw_only=True):
    """A vector for each text."""

    each_result: ClassVar = (EmbeddingResult, FailedResult)
    example: ClassVar = [{"embedding": [0.0676, 0.0635, 0.0487]}]


class TokensResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tokens of a text; `ids`, `tokens` and `offsets` are left out with `counts_only`."""

    count: int
    """How many there are."""
    fits: bool
    """Whether the model reads all of the text at once; a longer one is cut, or read in windows."""
    windows: int
    """How many windows the text is; 0 where it is empty."""
    ids: list[int] | None = None
    """Their numbers in the model's vocabulary."""
    tokens: list[str] | None = None
    """How the vocabulary writes them."""
    offsets: list[tuple[int, int] | None] | None = None
    """The first character of each in the text, and the one after its last; of one that the
    tokenizer adds, `null`."""


class TextResult(msgspec.Struct, frozen=True, kw_only=True):
    """The text of tokens."""

    text: str
    """As the tokenizer joins them; a model that lower-cases texts has no capitals to give back."""


class TokenizeAnswer(InferenceAnswer, frozen=True, kw_only=True):
    """The tokens of each text."""

    each_result: ClassVar = (TokensResult, FailedResult)
    example: ClassVar = [
        {
            "count": 4,
            "fits": True,
            "windows": 1,
            "ids": [101, 1037, 6251, 102],
            "tokens": ["[CLS]", "a", "sentence", "[SEP]"],
            "offsets": [None, [0, 1], [2, 10], None],
        }
    ]


class DetokenizeAnswer(InferenceAnswer, frozen=True, kw_only=True):
    """The text of each list of tokens."""

    each_result: ClassVar = (TextResult, FailedResult)
    example: ClassVar = [{"text": "a sentence"}]


class InferAnswer(InferenceAnswer, frozen=True, kw_only=True):
    """Results of the model's algorithm: any JSON value, or a `FailedResult`."""

    each_result: ClassVar = (Any,)
    example: ClassVar = [{"mood": "negative", "topic": "billing"}]
