"""Implements Cohere's API: embed, rerank, classify, tokenize and detokenize.

Cohere's clients list models with the native route `GET /v1/models`.
"""

from typing import Annotated, Any, Literal

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.api.inference_operations import INFERENCE_OPERATIONS
from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.api.schemas import ClassifyBody, EmbedBody, Positive, RerankBody
from sluicegate.gateway.api.vectors import as_all
from sluicegate.gateway.dialects.base import dialect_operation, input_tokens, prompt_for
from sluicegate.gateway.dialects.cohere_errors import COHERE_ERRORS
from sluicegate.gateway.dialects.cohere_route import SharedRoute
from sluicegate.gateway.dialects.cohere_tokens import COHERE_TOKENS
from sluicegate.gateway.dialects.stored_results import labels_in, ranking
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.types import Answer, InferenceRequest, RequestId, Usage
from sluicegate.wire.protocol import Task

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
# The default value of `max_tokens_per_doc` in Cohere's clients, which always send this field.
_WHOLE_DOCUMENT = 4096
_encode = msgspec.json.encode


class _CohereBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the field that all bodies share."""

    model: str
    """The name of a model, as in `GET /v1/models`."""


class CohereEmbedBody(_CohereBody, frozen=True, kw_only=True):
    """Turn texts into vectors, as in Cohere's API."""

    texts: list[str]
    """The texts. A request with images is refused."""
    input_type: str | None = None
    """Puts the model's prompt for this type before each text, if the model has one."""
    embedding_types: Annotated[tuple[EmbeddingType, ...], msgspec.Meta(max_length=6)] = ("float",)
    """The number types of the vectors. The response has the vectors in each of these types.
    `base64` encodes little-endian float32."""
    output_dimension: Positive | None = None
    """Shortens each vector to this many dimensions, and scales it to length 1 again."""
    truncate: Literal["NONE", "END"] | None = None
    """If `NONE`, a text longer than the model reads is refused. Otherwise, it is truncated."""
    priority: int | None = None
    """Ignored. Use the header `Sluicegate-Criticality` instead."""

    def items(self) -> list[Any]:
        """Return the texts."""
        return self.texts

    def request(self, model: str = "") -> InferenceRequest:
        """Return the equivalent request of the native route `POST /v1/embed`."""
        return EmbedBody(
            model=self.model,
            input=list(self.texts),
            dimensions=self.output_dimension,
            prompt_name=self.input_type,
            truncate=self.truncate != "NONE",
        ).request()


class CohereRerankBody(_CohereBody, frozen=True, kw_only=True):
    """Order documents by relevance to a query, as in Cohere's API."""

    query: str
    """The query with which documents are compared."""
    documents: list[str]
    """The texts to order."""
    top_n: Positive | None = None
    """How many documents to return, from the highest score on. The default is all."""
    max_tokens_per_doc: Annotated[int, msgspec.Meta(ge=_WHOLE_DOCUMENT)] | None = None
    """Ignored. A model reads each document up to the model's `max_tokens`, or in full if the model
    reads windows. A value below 4096 is refused."""
    priority: int | None = None
    """Ignored. Use the header `Sluicegate-Criticality` instead."""

    def items(self) -> list[Any]:
        """Return the documents."""
        return self.documents

    def request(self, model: str = "") -> InferenceRequest:
        """Return the equivalent request of the native route `POST /v1/rerank`."""
        return RerankBody(model=self.model, query=self.query, documents=self.documents).request()


class CohereClassifyBody(_CohereBody, frozen=True, kw_only=True):
    """Label texts with a trained classifier, as in Cohere's API."""

    inputs: list[str]
    """The texts."""
    examples: list[Any] = []
    """Must be empty, because the model is already trained."""
    truncate: Literal["NONE", "END"] | None = None
    """If `NONE`, a text longer than the model reads is refused. Otherwise, it is truncated."""

    def items(self) -> list[Any]:
        """Return the texts."""
        return self.inputs

    def request(self, model: str = "") -> InferenceRequest:
        """Return the equivalent request of the native route `POST /v1/classify`."""
        if self.examples:
            raise InvalidRequest(
                "`examples` is not supported, because models are already trained; leave it out, or"
                " send your labels to `POST /v1/zero-shot`."
            )
        return ClassifyBody(
            model=self.model, input=list(self.inputs), truncate=self.truncate != "NONE"
        ).request()


class CohereVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The version of Cohere's API."""

    version: str = "2"
    """A constant."""


class CohereUnits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request's size in Cohere's units.

    It is not billed; `GET /v1/usage` shows the billed usage.
    """

    input_tokens: int = 0
    """The number of tokens of all texts, computed or from the cache."""
    search_units: int = 0
    """1 for a request to `rerank`."""
    classifications: int = 0
    """The number of texts of a request to `classify`."""


class CohereUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of the response."""

    api_version: CohereVersion = CohereVersion()
    """The version of Cohere's API."""
    billed_units: CohereUnits
    """The size of the request."""


class CohereEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors of all texts."""

    id: str
    """The id of the request that computed this response or first read it from the cache."""
    response_type: Literal["embeddings_by_type"]
    """A constant."""
    embeddings: dict[EmbeddingType, list[list[float] | str]]
    """For each number type, the vectors in the order of the texts."""
    texts: list[str]
    """The texts."""
    meta: CohereUsage
    """Metadata of the response."""


class CohereDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document's index in the request, and its score."""

    index: int
    """The index of the document in `documents`, from 0."""
    relevance_score: float
    """The relevance to the query. Higher is more relevant."""


class CohereRerankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The documents, from the highest score to the lowest."""

    id: str
    """The id of the request that computed this response or first read it from the cache."""
    results: list[CohereDocument]
    """The documents, from the highest score to the lowest."""
    meta: CohereUsage
    """Metadata of the response."""


class CohereScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of a label."""

    confidence: float
    """The score. A label with a higher score is more likely."""


class CohereClassifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The label of a text."""

    id: str
    """The index of the text in the request, from 0."""
    input: str
    """The text."""
    prediction: str
    """The label with the highest score."""
    predictions: list[str]
    """The same, as a list."""
    confidence: float
    """The score of this label."""
    confidences: list[float]
    """The same, as a list."""
    labels: dict[str, CohereScore]
    """The score of each label."""
    classification_type: Literal["single-label"] = "single-label"
    """A constant."""


class CohereClassifyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The labels of all texts."""

    id: str
    """The id of the request that computed this response or first read it from the cache."""
    classifications: list[CohereClassifyResult]
    """One result for each text, in the order of the texts."""
    meta: CohereUsage
    """Metadata of the response."""


class CohereEmbedRoute(InferenceRoute):
    """Answers `POST /v2/embed`."""

    path = "/v2/embed"
    task = Task.EMBED
    errors = COHERE_ERRORS
    answer_growth = 2.0  # a request may ask for all number types at once
    reads_models = True
    _decode = BodyDecoder(CohereEmbedBody)

    @override
    def decode(self, source: BodySource) -> CohereEmbedBody:
        body = self._decode(source.raw)
        prompt = prompt_for(source, body.model, body.input_type)
        return msgspec.structs.replace(body, input_type=prompt)

    @override
    def encode(
        self, body: CohereEmbedBody, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        names = tuple(dict.fromkeys(body.embedding_types))
        vectors = [as_all(outcome.result, names) for outcome in answer.outcomes]
        kinds = [
            b'"%b":[%b]' % (name.encode(), b",".join(forms))
            for name, forms in zip(names, zip(*vectors, strict=True), strict=True)
        ]
        return Rendered(
            JSON,
            b'{"id":%b,"response_type":"embeddings_by_type","embeddings":{%b},"texts":%b,"meta":%b}'
            % (
                _encode(request_id),
                b",".join(kinds),
                _encode(body.texts),
                _encode(_meta(input_tokens=input_tokens(answer))),
            ),
        )


class CohereRerankRoute(InferenceRoute):
    """Answers `POST /v2/rerank`."""

    path = "/v2/rerank"
    task = Task.RERANK
    errors = COHERE_ERRORS
    _decode = BodyDecoder(CohereRerankBody)

    @override
    def decode(self, source: BodySource) -> CohereRerankBody:
        return self._decode(source.raw)

    @override
    def encode(
        self, body: CohereRerankBody, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        documents = [
            CohereDocument(index=index, relevance_score=score)
            for index, score in ranking(answer, body.top_n)
        ]
        meta = _meta(search_units=1)
        return Rendered(
            JSON, _encode(CohereRerankAnswer(id=request_id, results=documents, meta=meta))
        )


class CohereClassifyRoute(SharedRoute):
    """Serves `POST /v1/classify` for the native body and for Cohere's body."""

    answer_growth = 2.0  # the best label is repeated beside the scores of all labels

    @override
    def encode_cohere(self, body: Any, answer: Answer, request_id: RequestId) -> Rendered:
        found = [
            _classification(index, text, outcome.result)
            for index, (text, outcome) in enumerate(zip(body.inputs, answer.outcomes, strict=True))
        ]
        meta = _meta(classifications=len(found))
        answered = CohereClassifyAnswer(id=request_id, classifications=found, meta=meta)
        return Rendered(JSON, _encode(answered))


def _meta(**units: int) -> CohereUsage:
    return CohereUsage(billed_units=CohereUnits(**units))


def _classification(index: int, text: str, result: bytes) -> CohereClassifyResult:
    labels = labels_in(result)
    best = labels[0]
    return CohereClassifyResult(
        id=str(index),
        input=text,
        prediction=best.label,
        predictions=[best.label],
        confidence=best.score,
        confidences=[best.score],
        labels={one.label: CohereScore(confidence=one.score) for one in labels},
    )


_EMBED, _RERANK = CohereEmbedRoute(), CohereRerankRoute()
_CLASSIFY = CohereClassifyRoute(ClassifyBody, CohereClassifyBody, mark="inputs")
_ALSO_NATIVE = (_CLASSIFY, *COHERE_TOKENS)
_META = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 4}}
_ID = "req_1f0c5a9e7d3b2c4800000000a7"
COHERE = Dialect(
    name="cohere",
    description="The routes of Cohere's `ClientV2`: set its `base_url` to this gateway.",
    routes={
        _EMBED: dialect_operation(
            _EMBED,
            dialect="cohere",
            id="cohere_embed",
            summary="Turn texts into vectors, as Cohere does",
            body=CohereEmbedBody,
            example={
                "model": "minilm",
                "texts": ["a sentence"],
                "input_type": "search_query",
                "embedding_types": ["int8"],
            },
            answer=CohereEmbeddings,
            answer_example={
                "id": _ID,
                "response_type": "embeddings_by_type",
                "embeddings": {"int8": [[127, -3]]},
                "texts": ["a sentence"],
                "meta": _META,
            },
        ),
        _RERANK: dialect_operation(
            _RERANK,
            dialect="cohere",
            id="cohere_rerank",
            summary="Order documents by a query, as Cohere does",
            body=CohereRerankBody,
            example={
                "model": "minilm",
                "query": "How do I reset my card PIN?",
                "documents": ["Change your PIN at any cash machine.", "We are hiring."],
            },
            answer=CohereRerankAnswer,
            answer_example={
                "id": _ID,
                "results": [{"index": 0, "relevance_score": 0.71}],
                "meta": _META | {"billed_units": {"search_units": 1}},
            },
        ),
        **{route: INFERENCE_OPERATIONS["post", route.path] for route in _ALSO_NATIVE},
    },
    errors=COHERE_ERRORS,
    paths=("/v2/embed", "/v2/rerank"),
)
