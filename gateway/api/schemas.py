"""Defines the request bodies of the inference routes, and converts them to `InferenceRequest`s.

A request has items, and parameters, which all items share and which are part of the cache key.
Fields that only shape the response (`top_n`, `return_documents`, `on_error`) reach neither key nor
backend; `truncate` reaches the backend alone.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec.structs import fields, replace
from typing_extensions import override

from sluicegate.gateway.api import results
from sluicegate.gateway.api.vectors import NumberType
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.types import InferenceRequest
from sluicegate.wire.protocol import (
    LABELS,
    PARAMETERS,
    AnswerCount,
    AnswerItem,
    AnswerTokens,
    ChooseItem,
    EmbedItem,
    EmbedOutput,
    Overlap,
    Parameters,
    RowTokens,
    Task,
    TokenId,
)
from sluicegate.wire.settings import stated

Positive = Annotated[int, msgspec.Meta(ge=1)]
# Maps of free-form values are put in order, so that equal parameters have equal bytes.
_encode = msgspec.msgpack.Encoder(order="sorted").encode
_DENSE: tuple[EmbedOutput, ...] = ("dense",)
_SPARSE: tuple[EmbedOutput, ...] = ("sparse",)


def _reader(kind: type[Parameters]) -> Callable[["Body"], Parameters]:
    """Return a function that makes parameters of a body's fields of the same names.

    The function is compiled, as dataclasses compile their constructors: a loop over the fields in
    each request would take several times as long.
    """
    # A field that a body leaves out has no place in the key, if it has none by default.
    values = [
        f"{field.name}=UNSET if body.{field.name} is None else body.{field.name}"
        if field.default is msgspec.UNSET
        else f"{field.name}=body.{field.name}"
        for field in fields(kind)
    ]
    names = {"kind": kind, "UNSET": msgspec.UNSET}
    read: Callable[[Body], Parameters] = eval(  # noqa: S307 - only names of fields are put in
        f"lambda body: kind({', '.join(values)})", names
    )
    return read


_READERS = {task: _reader(kind) for task, kind in PARAMETERS.items()}


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Has the fields that the bodies of all inference routes share."""

    task: ClassVar[Task]
    answer: ClassVar[type[results.InferenceAnswer]]
    summary: ClassVar[str]
    example: ClassVar[dict[str, Any]]
    on_error: Literal["fail", "continue"] = "fail"
    """With `fail`, one bad item fails the request; with `continue` it has an error of its own."""
    truncate: bool = True
    """With `false`, a text that the model would read a part of is refused."""

    def items(self) -> list[Any]:
        """Return the items; a single input is a list of one."""
        raise NotImplementedError

    def task_parameters(self) -> Parameters:
        """Return what all items share: the fields that are parameters of the task."""
        return _READERS[self.task](self)

    def request(self, model: str = "") -> InferenceRequest:
        """Return the request in the gateway's terms; `model` is that of the path, where one is."""
        return InferenceRequest(
            task=self.task,
            # Of the body, but where only the path names it: see `TaskBody`.
            model=getattr(self, "model", model),  # type: ignore[arg-type]  # a call costs time
            parameters=_encode(self.task_parameters()),
            items=tuple(map(_encode, self.items())),
            continue_on_error=self.on_error == "continue",
            truncate=self.truncate,
        )


class TaskBody(Body, frozen=True, kw_only=True):
    """Has the field of bodies that name the model; elsewhere the path does."""

    model: str
    """The name of a model that answers this task; `GET /v1/models` lists them."""


class InputBody(TaskBody, frozen=True, kw_only=True):
    """Has the field of bodies that take one input or a list of them."""

    input: str | list[str]
    """A text, or a list of texts."""

    @override
    def items(self) -> list[Any]:
        return self.input if isinstance(self.input, list) else [self.input]


class ClassifyBody(InputBody, frozen=True, kw_only=True):
    """Label texts, or pairs of texts, with a trained classifier."""

    task: ClassVar = Task.CLASSIFY
    answer: ClassVar = results.ClassifyAnswer
    summary: ClassVar = "Label texts with a trained classifier"
    example: ClassVar = {"model": "sentiment", "input": ["a gorgeous, witty movie", "labored gags"]}
    input: str | list[str | tuple[str, str]]  # type: ignore[assignment]  # it takes pairs, too
    """A text, or a list of texts and of pairs of texts."""
    top_k: Positive | None = None
    """How many labels to return, the best ones; all where it is left out."""
    function: Literal["softmax", "sigmoid", "none"] | None = None
    """What makes scores of logits; the model's own where it is left out."""


class ZeroShotBody(InputBody, frozen=True, kw_only=True):
    """Label texts with labels of the caller's own."""

    task: ClassVar = Task.ZERO_SHOT
    answer: ClassVar = results.ZeroShotAnswer
    summary: ClassVar = "Label texts with labels of your own"
    example: ClassVar = {
        "model": "topics",
        "input": "The striker scored twice.",
        "labels": ["sports", "business"],
    }
    labels: Annotated[list[str], LABELS, stated(uniqueItems=True)]
    """What the texts may be about."""
    multi_label: bool = False
    """Whether several labels may be right, each by itself."""
    hypothesis_template: Annotated[str, stated(pattern=r"\{\}")] = "This text is about {}."
    """What the model is asked of each label, which stands at `{}`."""


class ChooseBody(InputBody, frozen=True, kw_only=True):
    """Choose the best of some options for a prompt."""

    task: ClassVar = Task.CHOOSE
    answer: ClassVar = results.ChooseAnswer
    summary: ClassVar = "Choose the best of some options"
    example: ClassVar = {
        "model": "topics",
        "input": {"prompt": "I cannot log in.", "choices": ["billing", "account access"]},
    }
    input: ChooseItem | list[ChooseItem]  # type: ignore[assignment]  # of another type
    """A prompt with its choices, or a list of them."""


class RerankBody(TaskBody, frozen=True, kw_only=True):
    """Order documents by how well they answer a query; each document is an item."""

    task: ClassVar = Task.RERANK
    answer: ClassVar = results.RerankAnswer
    summary: ClassVar = "Order documents by a query"
    example: ClassVar = {
        "model": "minilm",
        "query": "How do I reset my card PIN?",
        "documents": ["Change your PIN at any cash machine.", "We are hiring."],
        "return_documents": True,
    }
    query: str
    """What the documents are compared with."""
    instruction: str | None = None
    """What makes a document relevant, for models that read an instruction. Such a model has its own
    instruction for requests without one."""
    documents: list[str]
    """The texts to put in order."""
    top_n: Positive | None = None
    """How many documents to return, the best ones; all where it is left out."""
    return_documents: bool = False
    """Whether results hold the documents, too."""
    weights: dict[EmbedOutput, float] | None = None
    """Adds the scores of several outputs of the model, each times its weight."""

    @override
    def items(self) -> list[Any]:
        return self.documents

    @override
    def task_parameters(self) -> Parameters:
        if self.weights is not None and not self.weights:
            raise InvalidRequest("`weights` is empty; name an output, or leave it out.")
        return _READERS[self.task](self)


class EntitiesBody(InputBody, frozen=True, kw_only=True):
    """Find named entities in texts."""

    task: ClassVar = Task.ENTITIES
    answer: ClassVar = results.EntitiesAnswer
    summary: ClassVar = "Find named entities"
    example: ClassVar = {"model": "entities-demo", "input": "Angela Merkel visited Paris."}
    aggregation: Literal["none", "simple", "first", "average", "max"] = "simple"
    """How pieces of words become entities, as in Hugging Face's token classification."""
    labels: Annotated[list[str], LABELS, stated(uniqueItems=True)] | None = None
    """The types of entities to find; for models that find any type, such as GLiNER."""
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """With `labels`: the score that an entity must exceed; 0.5 where it is left out."""
    flat: bool | None = None
    """With `labels`: whether entities do not overlap, which is so where it is left out. With
    `false`, an entity may be inside another one."""
    multi_label: bool | None = None
    """With `labels`: whether the same words may be entities of several types."""
    relations: Annotated[list[str], LABELS, stated(uniqueItems=True)] | None = None
    """The types of relations to find; for GLiNER2 models. `threshold` applies to heads and tails,
    too. Without `labels`, the answer has no entities."""
    descriptions: dict[str, str] | None = None
    """What some of the `labels` and `relations` mean, by their names; for GLiNER2 models."""


class AnswerBody(InputBody, frozen=True, kw_only=True):
    """Find the answers to questions in texts."""

    task: ClassVar = Task.ANSWER
    answer: ClassVar = results.SpansAnswer
    summary: ClassVar = "Find the answers to questions in texts"
    example: ClassVar = {
        "model": "answers",
        "input": {"question": "Who scored?", "context": "The striker scored twice."},
    }
    input: AnswerItem | list[AnswerItem]  # type: ignore[assignment]  # of another type
    """A question with its text, or a list of them."""
    top_k: AnswerCount = 1
    """How many answers to return, the best ones."""
    max_answer_tokens: AnswerTokens = 15
    """The most tokens of an answer."""
    max_row_tokens: RowTokens | None = None
    """The most tokens that the model reads at once; at most 384 if left out."""
    overlap: Overlap | None = None
    """Tokens that each window of a long text shares with the one before; 128 if left out."""
    align_to_words: bool = True
    """Whether answers begin and end with whole words."""


class EmbedBody(InputBody, frozen=True, kw_only=True):
    """Turn texts into vectors."""

    task: ClassVar = Task.EMBED
    answer: ClassVar = results.EmbedAnswer
    summary: ClassVar = "Turn texts into vectors"
    example: ClassVar = {"model": "minilm", "input": "a sentence"}
    normalize: bool = True
    """Whether vectors have the length 1."""
    dimensions: Positive | None = None
    """Keeps the first so many numbers of a vector, before it is normalized."""
    prompt_name: str | None = None
    """The model's prompt to put before each text, a name of its `prompts` in `GET /v1/models`.
    Without it, the model's default prompt is put there, if it has one."""
    encoding_format: Literal["float", "base64", "bytes"] = "float"
    """`base64`: a vector is a string; `bytes`: the answer is vectors, one after another, alone."""
    output_dtype: NumberType = "float"
    """The type of the numbers: float32, or those of it that take less room."""
    outputs: Annotated[tuple[EmbedOutput, ...], stated(minItems=1, uniqueItems=True)] = ("dense",)
    """What to return of each text, if the model has it; each output of a text is an item."""
    input_type: Literal["query", "document"] = "document"
    """Which marks token vectors get: those of a query, or those of a document."""
    pool_factor: Positive = 1
    """Merges the token vectors of a document until one of so many is left."""
    return_tokens: bool = False
    """Whether to show the tokens of sparse vectors and of token vectors."""

    @property
    def is_as_stored(self) -> bool:
        """Whether vectors are sent as the cache keeps them."""
        return self.encoding_format == "float" and self.output_dtype == "float"

    @override
    def items(self) -> list[Any]:
        texts = self.input if isinstance(self.input, list) else [self.input]
        if self.outputs == _DENSE:
            return texts
        return [self._item(text, output) for text in texts for output in self.outputs]

    def _item(self, text: Any, output: EmbedOutput) -> Any:
        """Return the item of one output. A plain text asks for the dense vector."""
        if output == "dense":
            return text
        is_late = output == "multi_vector"
        is_query = is_late and self.input_type == "query"
        return EmbedItem(
            input=text,
            output=output,
            is_query=is_query,
            pool_factor=self.pool_factor if is_late and not is_query else 1,
            tokens=self.return_tokens,
        )

    @override
    def task_parameters(self) -> Parameters:
        if self.encoding_format == "bytes":
            self._check_bytes()
        if self.outputs == _DENSE:
            return _READERS[self.task](self)
        if not self.outputs or len(set(self.outputs)) < len(self.outputs):
            raise InvalidRequest("`outputs` is empty or names an output twice.")
        found = _READERS[self.task](self)
        if self.outputs == _SPARSE:  # neither of them changes a sparse vector
            return replace(found, normalize=True, dimensions=None)
        return found

    def _check_bytes(self) -> None:
        if self.outputs != _DENSE:
            raise InvalidRequest("`bytes` has room for dense vectors only; leave out `outputs`.")
        if self.on_error == "continue":
            raise InvalidRequest("`bytes` has no place for errors of items; leave out `on_error`.")


class TokenizeBody(InputBody, frozen=True, kw_only=True):
    """Count and show the tokens of texts; no model is run."""

    task: ClassVar = Task.TOKENIZE
    answer: ClassVar = results.TokenizeAnswer
    summary: ClassVar = "Count and show the tokens of texts"
    example: ClassVar = {"model": "minilm", "input": ["a sentence"]}
    truncate: bool = True
    """Is ignored: tokens are of the whole text."""
    counts_only: bool = False
    """Whether to leave out the tokens themselves."""
    add_special_tokens: bool = True
    """Whether tokens are shown and counted that the tokenizer adds to every text."""
    overlap: Overlap = 32
    """Tokens that each of the counted windows shares with the one before."""


class DetokenizeBody(TaskBody, frozen=True, kw_only=True):
    """Turn tokens into texts; no model is run."""

    task: ClassVar = Task.DETOKENIZE
    answer: ClassVar = results.DetokenizeAnswer
    summary: ClassVar = "Turn tokens into texts"
    example: ClassVar = {"model": "minilm", "ids": [[101, 1037, 6251, 102]]}
    truncate: bool = True
    """Is ignored: nothing is left out."""
    ids: list[TokenId | list[TokenId]]
    """The tokens of a text, as numbers of the model's vocabulary, or a list of such lists."""
    skip_special_tokens: bool = True
    """Whether to leave out tokens that the tokenizer adds to every text."""

    @override
    def items(self) -> list[Any]:
        return texts_in_tokens(self.ids, "ids")


class InferBody(Body, frozen=True, kw_only=True):
    """Run a model's own algorithm over JSON items; the model is named in the path."""

    task: ClassVar = Task.INFER
    answer: ClassVar = results.InferAnswer
    summary: ClassVar = "Run a model's own algorithm"
    example: ClassVar = {"inputs": ["My card was charged twice and nobody answers!"]}
    inputs: list[Any]
    """The items: JSON values in the shape that the algorithm reads."""
    parameters: dict[str, Any] = {}
    """What the algorithm takes beside the items."""

    @override
    def items(self) -> list[Any]:
        return self.inputs


def texts_in_tokens(values: list[Any], field: str) -> list[Any]:
    """Return the tokens of each text: `values` are those of one, or lists of them.

    Raises:
        InvalidRequest: they are neither.
    """
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) == len(values):
        return lists
    if lists or not all(isinstance(value, int) for value in values):
        raise InvalidRequest(f"`{field}` takes tokens of one text, or a list of lists of them.")
    return [values]


TASK_BODIES: tuple[type[TaskBody], ...] = (
    ClassifyBody,
    ZeroShotBody,
    ChooseBody,
    RerankBody,
    EntitiesBody,
    AnswerBody,
    EmbedBody,
    TokenizeBody,
    DetokenizeBody,
)
BODIES: tuple[type[Body], ...] = (*TASK_BODIES, InferBody)
"""The body of each inference route; the routes are made of them."""
