"""Defines the request bodies of the inference routes, and converts them to `InferenceRequest`s.

`request()` splits a body into items and parameters, which all items share and which are part of the
cache key. Fields that only shape the response (`top_n`, `return_documents`, `on_error`) reach
neither key nor backend; `truncate` reaches the backend alone.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from backends.protocol import (
    ChooseItem,
    ChooseParameters,
    ClassifyParameters,
    EmbedParameters,
    EntitiesParameters,
    InferParameters,
    Parameters,
    RerankParameters,
    Task,
    ZeroShotParameters,
)
from gateway.types import InferenceRequest, ModelName

OnError = Literal["fail", "continue"]
Text = str
Positive = Annotated[int, msgspec.Meta(ge=1)]
# Maps of free-form values are put in order, so that equal parameters have equal bytes.
_encode = msgspec.msgpack.Encoder(order="sorted").encode
_NO_CHOOSE_PARAMETERS = ChooseParameters()


class ClassifyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Label texts, or pairs of texts, with a trained classifier."""

    task: ClassVar = Task.CLASSIFY
    model: str
    """The name of a model that answers this task; `GET /v1/models` lists them."""
    input: Text | list[Text | tuple[Text, Text]]
    """A text, or a list of texts and of pairs of texts."""
    top_k: Positive | None = None
    """How many labels to return, the best ones; all where it is left out."""
    function: Literal["softmax", "sigmoid", "none"] | None = None
    """What makes scores of logits; the model's own where it is left out."""
    on_error: OnError = "fail"
    """With `fail`, one bad item fails the request; with `continue` it has an error of its own."""
    truncate: bool = True
    """With `false`, a text that the model would read a part of is refused."""

    def request(self) -> InferenceRequest:
        """Return the request in the gateway's terms."""
        parameters = ClassifyParameters(top_k=self.top_k, function=self.function)
        return _request(self.task, self.model, parameters, _listed(self.input), self)


class ZeroShotBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Label texts with labels of the caller's own."""

    task: ClassVar = Task.ZERO_SHOT
    model: str
    """The name of a model that answers this task; `GET /v1/models` lists them."""
    input: Text | list[Text]
    """A text, or a list of texts."""
    labels: list[str]
    """What the texts may be about."""
    multi_label: bool = False
    """Whether several labels may be right, each by itself."""
    hypothesis_template: str = "This text is about {}."
    """What the model is asked of each label, which stands at `{}`."""
    on_error: OnError = "fail"
    """With `fail`, one bad item fails the request; with `continue` it has an error of its own."""
    truncate: bool = True
    """With `false`, a text that the model would read a part of is refused."""

    def request(self) -> InferenceRequest:
        """Return the request in the gateway's terms."""
        parameters = ZeroShotParameters(
            labels=self.labels,
            multi_label=self.multi_label,
            hypothesis_template=self.hypothesis_template,
        )
        return _request(self.task, self.model, parameters, _listed(self.input), self)


class ChooseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choose the best of some options for a prompt."""

    task: ClassVar = Task.CHOOSE
    model: str
    """The name of a model that answers this task; `GET /v1/models` lists them."""
    input: ChooseItem | list[ChooseItem]
    """A prompt with its choices, or a list of them."""
    on_error: OnError = "fail"
    """With `fail`, one bad item fails the request; with `continue` it has an error of its own."""
    truncate: bool = True
    """With `false`, a text that the model would read a part of is refused."""

    def request(self) -> InferenceRequest:
        """Return the request in the gateway's terms."""
        return _request(self.task, self.model, _NO_CHOOSE_PARAMETERS, _listed(self.input), self)


class RerankBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Order documents by how well they answer a query; each document is an item."""

    task: ClassVar = Task.RERANK
    model: str
    """The name of a model that answers this task; `GET /v1/models` lists them."""
    query: str
    """What the documents are compared with."""
    documents: list[Text]
    """The texts to put in order."""
    top_n: Positive | None = None
    """How many documents to return, the best ones; all where it is left out."""
    return_documents: bool = False
    """Whether results hold the documents, too."""
    on_error: OnError = "fail"
    """With `fail`, one bad item fails the request; with `continue` it has an error of its own."""
    truncate: bool = True
    """With `false`, a text that the model would read a part of is refused."""

    def request(self) -> InferenceRequest:
        """Return the request in the gateway's terms."""
        parameters = RerankParameters(query=self.query)
        return _request(self.task, self.model, parameters, self.documents, self)


class EntitiesBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Find named entities in texts."""

    task: ClassVar = Task.ENTITIES
    model: str
    """The name of a model that answers this task; `GET /v1/models` lists them."""
    input: Text | list[Text]
    """A text, or a list of texts."""
    aggregation: Literal["none", "simple", "first", "average", "max"] = "simple"
    """How pieces of words become entities, as in Hugging Face's token classification."""
    on_error: OnError = "fail"
    """With `fail`, one bad item fails the request; with `continue` it has an error of its own."""
    truncate: bool = True
    """With `false`, a text that the model would read a part of is refused."""

    def request(self) -> InferenceRequest:
        """Return the request in the gateway's terms."""
        parameters = EntitiesParameters(aggregation=self.aggregation)
        return _request(self.task, self.model, parameters, _listed(self.input), self)


class EmbedBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Turn texts into vectors."""

    task: ClassVar = Task.EMBED
    model: str
    """The name of a model that answers this task; `GET /v1/models` lists them."""
    input: Text | list[Text]
    """A text, or a list of texts."""
    normalize: bool = True
    """Whether vectors have the length 1."""
    dimensions: Positive | None = None
    """Keeps the first so many numbers of a vector, before it is normalized."""
    on_error: OnError = "fail"
    """With `fail`, one bad item fails the request; with `continue` it has an error of its own."""
    truncate: bool = True
    """With `false`, a text that the model would read a part of is refused."""

    def request(self) -> InferenceRequest:
        """Return the request in the gateway's terms."""
        parameters = EmbedParameters(normalize=self.normalize, dimensions=self.dimensions)
        return _request(self.task, self.model, parameters, _listed(self.input), self)


class InferBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run a model's own algorithm over JSON items; the model is named in the path."""

    task: ClassVar = Task.INFER
    inputs: list[Any]
    """The items: JSON values in the shape that the algorithm reads."""
    parameters: dict[str, Any] = {}
    """What the algorithm takes beside the items."""
    on_error: OnError = "fail"
    """With `fail`, one bad item fails the request; with `continue` it has an error of its own."""
    truncate: bool = True
    """With `false`, a text that the model would read a part of is refused."""

    def request_for(self, model: str) -> InferenceRequest:
        """Return the request in the gateway's terms."""
        parameters = InferParameters(parameters=self.parameters)
        return _request(self.task, model, parameters, self.inputs, self)


TaskBody = ClassifyBody | ZeroShotBody | ChooseBody | RerankBody | EntitiesBody | EmbedBody
Body = TaskBody | InferBody

TASK_BODIES: tuple[type[TaskBody], ...] = (
    ClassifyBody,
    ZeroShotBody,
    ChooseBody,
    RerankBody,
    EntitiesBody,
    EmbedBody,
)


def _listed(value: object) -> list[Any]:
    """Return `value` as a list: a single input and a list of one are shapes of the same request."""
    return value if isinstance(value, list) else [value]


def _request(
    task: Task, model: str, parameters: Parameters, items: list[Any], body: "Body"
) -> InferenceRequest:
    return InferenceRequest(
        task=task,
        model=ModelName(model),
        parameters=_encode(parameters),
        items=tuple([_encode(item) for item in items]),
        continue_on_error=body.on_error == "continue",
        truncate=body.truncate,
    )
