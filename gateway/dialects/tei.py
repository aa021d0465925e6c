"""Implements the API of TEI (text-embeddings-inference).

A TEI server has a single model. On the gateway, the path therefore names the model, and a client's
base URL ends in `/tei/{model}`.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.api.openapi_parts import Operation
from sluicegate.gateway.api.schemas import (
    Body,
    ClassifyBody,
    EmbedBody,
    RerankBody,
    texts_in_tokens,
)
from sluicegate.gateway.dialects.base import dialect_operation, takes_tokens, texts_only
from sluicegate.gateway.dialects.hugging_face import given_fields, single_task
from sluicegate.gateway.dialects.hugging_face_errors import TEI_ERRORS
from sluicegate.gateway.dialects.hugging_face_tasks import (
    FeatureExtractionInputs,
    ModelCall,
    SimilarityInputs,
    TaskInputs,
    ranked_texts,
    vectors_of,
)
from sluicegate.gateway.dialects.stored_results import encoded_list, labels_in, weights_in
from sluicegate.gateway.dialects.tei_info import model_probes
from sluicegate.gateway.dialects.tei_tokens import TeiDecodeInputs, TeiTokenizeInputs
from sluicegate.gateway.errors import InvalidRequest, TaskNotSupported
from sluicegate.gateway.http.body_decoding import convert_body
from sluicegate.gateway.types import Answer, RequestId, Usage
from sluicegate.wire.protocol import Task, TokenId

_encode = msgspec.json.encode
_PAIR = 2
# TEI's responses are larger than native responses, because each token is an object with five
# fields. The native route writes three lists for all tokens.
_TOKEN_GROWTH = 2.5
_Direction = Annotated[str, msgspec.Meta(pattern="^[Rr]ight$")]


class TeiEmbedInputs(FeatureExtractionInputs, frozen=True, kw_only=True):
    """Turn texts into vectors, as in TEI's API."""

    inputs: str | list[str | TokenId | list[TokenId]]
    """A text, or a list of texts. Some models are configured to accept token ids, too."""

    def given(self) -> list[Any]:
        """Return the inputs as a list, even if there is only one."""
        return self.inputs if isinstance(self.inputs, list) else [self.inputs]

    @override
    def items(self) -> list[Any]:
        given = self.given()
        is_text = all(isinstance(one, str) for one in given)
        return given if is_text else texts_in_tokens(given, "inputs")

    @override
    def native(self, model: str) -> Body:
        return EmbedBody(
            model=model,
            input=self.items(),
            normalize=self.normalize,
            dimensions=self.dimensions,
            prompt_name=self.prompt_name,
            truncate=self.truncate,
        )

    @override
    def write(self, answer: Answer) -> bytes:
        return vectors_of(answer)


class TeiSparseInputs(TaskInputs, frozen=True, kw_only=True):
    """Turn texts into sparse vectors, as in TEI's API."""

    inputs: str | list[str]
    """A text, or a list of texts."""
    prompt_name: str | None = None
    """The model's prompt to put before each text, a name of its `prompts` in `GET /v1/models`."""
    truncate: bool = True
    """Whether to truncate texts longer than the model reads. If not, such texts are refused."""
    truncation_direction: _Direction = "right"
    """Must be `right`. Sluicegate truncates texts only at the end."""

    @override
    def items(self) -> list[Any]:
        return self.inputs if isinstance(self.inputs, list) else [self.inputs]

    @override
    def native(self, model: str) -> Body:
        return EmbedBody(
            model=model,
            input=self.items(),
            outputs=("sparse",),
            prompt_name=self.prompt_name,
            truncate=self.truncate,
        )

    @override
    def write(self, answer: Answer) -> bytes:
        return encoded_list(
            [{"index": index, "value": value} for index, value in weights_in(outcome.result)]
            for outcome in answer.outcomes
        )


class TeiPredictInputs(TaskInputs, frozen=True, kw_only=True):
    """Label texts with a trained classifier, as in TEI's API."""

    inputs: str | list[str | list[str]]
    """A text, a list of two texts (a pair), or a list of lists that each hold a text or a pair."""
    raw_scores: bool = False
    """Whether to return logits as scores."""
    truncate: bool = True
    """Whether to truncate texts longer than the model reads. If not, such texts are refused."""
    truncation_direction: _Direction = "right"
    """Must be `right`. Sluicegate truncates texts only at the end."""

    @property
    def is_batch(self) -> bool:
        """Whether the response has a list for each text."""
        return isinstance(self.inputs, list) and not isinstance(next(iter(self.inputs), None), str)

    @override
    def items(self) -> list[Any]:
        if isinstance(self.inputs, str):
            return [self.inputs]
        each: list[Any] = self.inputs if self.is_batch else [self.inputs]
        return [_text_or_pair(one) for one in each]

    @override
    def native(self, model: str) -> Body:
        function: Any = "none" if self.raw_scores else None
        return ClassifyBody(
            model=model, input=self.items(), function=function, truncate=self.truncate
        )

    @override
    def write(self, answer: Answer) -> bytes:
        if not self.is_batch:
            return _encode(labels_in(answer.outcomes[0].result))
        return encoded_list(labels_in(outcome.result) for outcome in answer.outcomes)


class TeiRerankInputs(TaskInputs, frozen=True, kw_only=True):
    """Order texts by relevance to a query, as in TEI's API."""

    query: str
    """The query with which texts are compared."""
    texts: list[str]
    """The texts to order."""
    raw_scores: bool = False
    """Must be `false`, because logits are not stored."""
    return_text: bool = False
    """Whether results include the texts."""
    truncate: bool = True
    """Whether to truncate texts longer than the model reads. If not, such texts are refused."""
    truncation_direction: _Direction = "right"
    """Must be `right`. Sluicegate truncates texts only at the end."""

    @override
    def items(self) -> list[Any]:
        return self.texts

    @override
    def native(self, model: str) -> Body:
        if self.raw_scores:
            raise InvalidRequest("`raw_scores` is not supported for this task; leave it out.")
        return RerankBody(
            model=model, query=self.query, documents=self.texts, truncate=self.truncate
        )

    @override
    def write(self, answer: Answer) -> bytes:
        return _encode(ranked_texts(answer, self.texts if self.return_text else None))


class TeiRoute(InferenceRoute):
    """Serves `POST` on one of TEI's paths below the path of a model."""

    errors = TEI_ERRORS

    below = "/tei/{model}"

    def __init__(self, path: str, task: Task, inputs: type[TaskInputs]) -> None:
        self.path = f"{self.below}{path}"
        self.task = task
        self.body = inputs
        if task is Task.TOKENIZE:
            self.answer_growth = _TOKEN_GROWTH
        super().__init__()

    def model_name(self, source: BodySource) -> str:
        """Return the name of the requested model."""
        return source.parameters["model"]

    @override
    def decode(self, source: BodySource) -> ModelCall:
        fields = given_fields(source.raw)
        model = self.model_name(source)
        inputs = convert_body(fields, self.inputs(source, fields))
        if isinstance(inputs, TeiEmbedInputs) and not takes_tokens(source, model):
            texts_only(inputs.given(), "inputs")
        return ModelCall(model, inputs)

    def inputs(self, source: BodySource, fields: dict[str, Any]) -> type[TaskInputs]:
        """Return the type of a body that has `fields`."""
        return self.body

    @override
    def encode(
        self, body: ModelCall, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        return Rendered(JSON, body.inputs.write(answer))


class TeiHostRoute(TeiRoute):
    """Serves one of TEI's paths without a model in the path.

    The route exists because some clients drop the path of their base URL, which names the model.

    The API key determines the model. Exactly one of the models that the key permits must have the
    task.
    """

    below = ""
    reads_models = True

    @override
    def model_name(self, source: BodySource) -> str:
        allowed = () if source.principal is None else source.principal.models or ()
        served = [source.served(name) for name in sorted(allowed)]
        names = [one.info.name for one in served if one and self.task in one.info.tasks]
        if len(names) != 1:
            raise InvalidRequest(
                f"The path names no model: use `/tei/{{model}}{self.path}`, or a key whose models"
                " include exactly one with this task."
            )
        return names[0]


class TeiModelRoute(TeiRoute):
    """Serves `POST` on the path of a model. The request runs the model's task."""

    reads_models = True

    @override
    def inputs(self, source: BodySource, fields: dict[str, Any]) -> type[TaskInputs]:
        if "query" in fields:
            return TeiRerankInputs
        served = source.served(source.parameters["model"])
        tasks = [Task.EMBED] if served is None else served.info.tasks
        return _BY_TASK[single_task(tasks, tuple(_BY_TASK))]


class TeiRefusedRoute(TeiRoute):
    """Refuses a path of TEI that Sluicegate does not support.

    The error says what to use instead.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, Task.EMBED, FeatureExtractionInputs)
        self._why = why

    @override
    def decode(self, source: BodySource) -> ModelCall:
        raise TaskNotSupported(self._why)


def _text_or_pair(texts: str | list[Any]) -> str | tuple[str, str]:
    is_list = not isinstance(texts, str) and 0 < len(texts) <= _PAIR
    if not (is_list and all(isinstance(text, str) for text in texts)):
        raise InvalidRequest(
            "`inputs` must be a text, a pair of texts, or a list of lists of one or two texts."
        )
    return texts[0] if len(texts) < _PAIR else (texts[0], texts[1])


_BY_TASK: dict[Task, type[TaskInputs]] = {
    Task.CLASSIFY: TeiPredictInputs,
    Task.EMBED: TeiEmbedInputs,
}
_ROUTES_WITHOUT_MODEL: tuple[tuple[str, Task, type[TaskInputs]], ...] = (
    ("/embed", Task.EMBED, TeiEmbedInputs),
    ("/embed_sparse", Task.EMBED, TeiSparseInputs),
    ("/predict", Task.CLASSIFY, TeiPredictInputs),
    ("/rerank", Task.RERANK, TeiRerankInputs),
)
_LABELS = [{"label": "positive", "score": 0.98}]
_RANKED = [{"index": 0, "score": 0.71}]
_RANK: Any = {"query": "How do I reset my PIN?", "texts": ["At any cash machine.", "We hire."]}
_COMPARED: Any = {"inputs": {"source_sentence": "a film", "sentences": ["a movie", "a card"]}}
_IDS: Any = {"ids": [101, 1037, 6251, 102]}
_TOKENS = [[{"id": 1037, "text": "a", "special": False, "start": 0, "stop": 1}]]
_REFUSED = {
    "/embed_all": "Use `POST /v1/embed` with the output `multi_vector` for vectors of tokens.",
}


def _operation(
    route: TeiRoute, name: str, summary: str, body: Any, answer: Any, model: str = "minilm"
) -> Operation:
    return dialect_operation(
        route,
        dialect="tei",
        id=f"tei_{name}",
        summary=summary,
        body=route.body,
        example=body,
        answer=list[Any],
        answer_example=answer,
        path_example={"model": model},
    )


def _routes() -> Iterator[tuple[InferenceRoute, Operation | None]]:
    texts: Any = {"inputs": ["a sentence"]}
    text: Any = {"inputs": "a gorgeous, witty movie"}
    embed = TeiRoute("/embed", Task.EMBED, TeiEmbedInputs)
    yield embed, _operation(embed, "embed", "Turn texts into vectors", texts, [[0.0676]])
    sparse = TeiRoute("/embed_sparse", Task.EMBED, TeiSparseInputs)
    weights = [[{"index": 1037, "value": 0.5}]]
    told = "Turn texts into sparse vectors"
    yield sparse, _operation(sparse, "embed_sparse", told, texts, weights, "splade")
    predict = TeiRoute("/predict", Task.CLASSIFY, TeiPredictInputs)
    yield (
        predict,
        _operation(predict, "predict", "Label a text, or texts", text, _LABELS, "sentiment"),
    )
    rerank = TeiRoute("/rerank", Task.RERANK, TeiRerankInputs)
    yield rerank, _operation(rerank, "rerank", "Order texts by a query", _RANK, _RANKED)
    similarity = TeiRoute("/similarity", Task.EMBED, SimilarityInputs)
    yield (
        similarity,
        _operation(similarity, "similarity", "Compare sentences", _COMPARED, [0.8, 0.1]),
    )
    tokenize = TeiRoute("/tokenize", Task.TOKENIZE, TeiTokenizeInputs)
    yield tokenize, _operation(tokenize, "tokenize", "Show the tokens of texts", texts, _TOKENS)
    decode = TeiRoute("/decode", Task.DETOKENIZE, TeiDecodeInputs)
    yield decode, _operation(decode, "decode", "Turn tokens into texts", _IDS, ["a sentence"])
    model = TeiModelRoute("", Task.EMBED, TeiEmbedInputs)
    yield model, _operation(model, "model", "Run the model's task", texts, [[0.0676]])
    for path, task, inputs in _ROUTES_WITHOUT_MODEL:
        yield TeiHostRoute(path, task, inputs), None
    for path, why in _REFUSED.items():
        yield TeiRefusedRoute(path, why), None


TEI = Dialect(
    name="tei",
    title="As TEI's clients",
    description="The routes of TEI (text-embeddings-inference): the base URL is `/tei/{model}`.",
    routes=dict(_routes()),
    handlers=model_probes("/tei/{model:str}", "tei"),
    errors=TEI_ERRORS,
    paths=("/tei/",),
)
