"""Answers Cohere's clients: embed, rerank, classify, tokens. Native routes list the models."""

from typing import Annotated, Any, Literal

import msgspec
from typing_extensions import override

from backends.protocol import Task
from gateway.api.answers import encode_answer
from gateway.api.dialect import Dialect
from gateway.api.inference_operations import INFERENCE_OPERATIONS
from gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from gateway.api.native_routes import NativeRoute
from gateway.api.schemas import ClassifyBody, EmbedBody, Positive, RerankBody
from gateway.api.vectors import as_all
from gateway.dialects.base import dialect_operation, input_tokens
from gateway.dialects.cohere_errors import COHERE_ERRORS
from gateway.dialects.cohere_tokens import COHERE_TOKENS
from gateway.dialects.stored_results import labels_in, ranking
from gateway.errors import InvalidRequest
from gateway.http.body_decoding import BodyDecoder
from gateway.types import Answer, InferenceRequest, RequestId, Usage

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
# Cohere's own default, which clients send: as much as a model reads.
_WHOLE_DOCUMENT = 4096
_encode = msgspec.json.encode


class _CohereBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Has the field that all bodies share."""

    model: str
    """The name of a model; `GET /v1/models` lists them."""


class CohereEmbedBody(_CohereBody, frozen=True, kw_only=True):
    """Turn texts into vectors, as Cohere's clients ask for them."""

    texts: list[str]
    """The texts; images are refused."""
    input_type: str | None = None
    """Is ignored: models have no words that they put before a text."""
    embedding_types: Annotated[tuple[EmbeddingType, ...], msgspec.Meta(max_length=6)] = ("float",)
    """What vectors are made of; the answer has each. `base64` is of little-endian float32."""
    output_dimension: Positive | None = None
    """Keeps the first so many numbers of a vector, which then has the length 1 again."""
    truncate: Literal["NONE", "END"] | None = None
    """With `NONE`, a text that the model would read a part of is refused."""
    priority: int | None = None
    """Is ignored; the header `Sluicegate-Criticality` says it here."""

    def items(self) -> list[Any]:
        """Return the texts."""
        return self.texts

    def request(self, model: str = "") -> InferenceRequest:
        """Return the request that `POST /v1/embed` would make of it."""
        return EmbedBody(
            model=self.model,
            input=list(self.texts),
            dimensions=self.output_dimension,
            truncate=self.truncate != "NONE",
        ).request()


class CohereRerankBody(_CohereBody, frozen=True, kw_only=True):
    """Order documents by how well they answer a query, as Cohere's clients ask for it."""

    query: str
    """What the documents are compared with."""
    documents: list[str]
    """The texts to put in order."""
    top_n: Positive | None = None
    """How many documents to return, the best ones; all where it is left out."""
    max_tokens_per_doc: Annotated[int, msgspec.Meta(ge=_WHOLE_DOCUMENT)] | None = None
    """Is ignored: a document is read up to the model's `max_tokens`, or whole by models that read
    windows. Less than 4096 is refused."""
    priority: int | None = None
    """Is ignored; the header `Sluicegate-Criticality` says it here."""

    def items(self) -> list[Any]:
        """Return the documents."""
        return self.documents

    def request(self, model: str = "") -> InferenceRequest:
        """Return the request that `POST /v1/rerank` would make of it."""
        return RerankBody(model=self.model, query=self.query, documents=self.documents).request()


class CohereClassifyBody(_CohereBody, frozen=True, kw_only=True):
    """Label texts with a trained classifier, as Cohere's clients ask for it."""

    inputs: list[str]
    """The texts."""
    examples: list[Any] = []
    """Is refused unless it is empty: models are trained before."""
    truncate: Literal["NONE", "END"] | None = None
    """With `NONE`, a text that the model would read a part of is refused."""

    def items(self) -> list[Any]:
        """Return the texts."""
        return self.inputs

    def request(self, model: str = "") -> InferenceRequest:
        """Return the request that `POST /v1/classify` would make of it."""
        if self.examples:
            raise InvalidRequest(
                "`examples` are not learned from; leave them out and name a trained classifier, or"
                " send their labels to `POST /v1/zero-shot`."
            )
        return ClassifyBody(
            model=self.model, input=list(self.inputs), truncate=self.truncate != "NONE"
        ).request()


class _HasInputs(msgspec.Struct, frozen=True):
    inputs: msgspec.Raw


class CohereVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The version of Cohere's API."""

    version: str = "2"
    """Is always the same."""


class CohereUnits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request asked for in Cohere's units; `GET /v1/usage` says what is billed."""

    input_tokens: int = 0
    """Tokens of all texts, computed or cached."""
    search_units: int = 0
    """Requests, of `rerank`."""
    classifications: int = 0
    """Texts, of `classify`."""


class CohereUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request."""

    api_version: CohereVersion = CohereVersion()
    """The version of Cohere's API."""
    billed_units: CohereUnits
    """What it asked for."""


class CohereEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors of all texts."""

    id: str
    """Names the request that computed the answer or first read it from the cache."""
    response_type: Literal["embeddings_by_type"]
    """Is always the same."""
    embeddings: dict[EmbeddingType, list[list[float] | str]]
    """The vectors in the order of the texts, by what they are made of."""
    texts: list[str]
    """The texts."""
    meta: CohereUsage
    """What is known of the request."""


class CohereDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document's place in the request, and its score."""

    index: int
    """Its place in `documents`, from 0."""
    relevance_score: float
    """More is a better answer to the query."""


class CohereRerankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The documents, best first."""

    id: str
    """Names the request that computed the answer or first read it from the cache."""
    results: list[CohereDocument]
    """The best first."""
    meta: CohereUsage
    """What is known of the request."""


class CohereScore(msgspec.Struct, frozen=True, kw_only=True):
    """How sure the model is of a label."""

    confidence: float
    """More is surer."""


class CohereClassifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The label of a text."""

    id: str
    """Names the text among those of the request."""
    input: str
    """The text."""
    prediction: str
    """The best label."""
    predictions: list[str]
    """The same."""
    confidence: float
    """How sure the model is of it."""
    confidences: list[float]
    """The same."""
    labels: dict[str, CohereScore]
    """How sure it is of each label."""
    classification_type: Literal["single-label"] = "single-label"
    """Is always the same."""


class CohereClassifyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The labels of all texts."""

    id: str
    """Names the request that computed the answer or first read it from the cache."""
    classifications: list[CohereClassifyResult]
    """One for each text, in their order."""
    meta: CohereUsage
    """What is known of the request."""


class CohereEmbedRoute(InferenceRoute):
    """Answers `POST /v2/embed`."""

    path = "/v2/embed"
    task = Task.EMBED
    errors = COHERE_ERRORS
    answer_growth = 2.0  # a caller may ask for vectors in all types at once
    _decode = BodyDecoder(CohereEmbedBody)

    @override
    def decode(self, source: BodySource) -> CohereEmbedBody:
        return self._decode(source.raw)

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


class CohereClassifyRoute(NativeRoute):
    """Answers `POST /v1/classify`, the native route; Cohere's clients send `inputs` to it.

    No native body has that field.
    """

    answer_growth = 2.0  # the best label is listed besides the scores of all
    _decode_inputs = BodyDecoder(_HasInputs)
    _decode_cohere = BodyDecoder(CohereClassifyBody)

    def __init__(self) -> None:
        super().__init__(ClassifyBody)

    @override
    def decode(self, source: BodySource) -> Any:
        try:
            return self._decode(source.raw)
        except msgspec.ValidationError:
            try:
                self._decode_inputs(source.raw)
            except msgspec.ValidationError:
                is_of_cohere = False
            else:
                is_of_cohere = True
            if not is_of_cohere:
                raise
        return self._decode_cohere(source.raw)

    @override
    def is_spliced(self, body: Any) -> bool:
        return not isinstance(body, CohereClassifyBody)

    @override
    def encode(self, body: Any, answer: Answer, usage: Usage, request_id: RequestId) -> Rendered:
        if not isinstance(body, CohereClassifyBody):
            return Rendered(JSON, encode_answer(body, answer, usage))
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


_EMBED, _RERANK, _CLASSIFY = CohereEmbedRoute(), CohereRerankRoute(), CohereClassifyRoute()
_ALSO_NATIVE = (_CLASSIFY, *COHERE_TOKENS)
_META = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 4}}
_ID = "req_1f0c5a9e7d3b2c4800000000a7"
COHERE = Dialect(
    name="cohere",
    description="What Cohere's `ClientV2` asks for: point `base_url` here.",
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
