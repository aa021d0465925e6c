"""Implements Jina's and Voyage's embeddings and reranking, which differ only in field names.

Both products use the same paths as native routes. A body does not show to which product it belongs.
The gateway therefore serves the two APIs under the prefixes `/jina` and `/voyage`. Errors are
problem documents, as on native routes. The clients of both products read the field `detail` of
these documents.
"""

from typing import Any, Literal

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.api.schemas import EmbedBody, Positive, RerankBody
from sluicegate.gateway.api.vectors import NumberType, as_base64, as_json
from sluicegate.gateway.dialects.base import dialect_operation, input_tokens, joined_results
from sluicegate.gateway.dialects.stored_results import ranking
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.types import Answer, InferenceRequest, RequestId, Usage
from sluicegate.wire.protocol import Task

_encode = msgspec.json.encode


class _Matrix(msgspec.Struct, frozen=True):
    multi_vector: msgspec.Raw


_matrix = msgspec.json.Decoder(_Matrix).decode


class _NamedBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the field that all bodies share, and writes the response."""

    model: str
    """The name of a model, as in `GET /v1/models`."""

    def items(self) -> list[Any]:
        """Return the texts. Their number is checked before the request is made."""
        raise NotImplementedError

    def write(self, answer: Answer) -> dict[str, Any]:
        """Return the fields of the response, except model and usage."""
        raise NotImplementedError


class JinaTextItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text in an object."""

    text: str
    """The text."""


class JinaEmbeddingsBody(_NamedBody, frozen=True, kw_only=True):
    """Turn texts into vectors, as in Jina's API."""

    input: str | list[str | JinaTextItem]
    """A text, or a list of texts. A request with images is refused."""
    task: str | None = None
    """With `return_multivector`, a name that ends in `query` marks texts as queries. Otherwise
    ignored, because Sluicegate adds no prompt to texts."""
    return_multivector: bool = False
    """Whether to return the vectors of tokens, as `embeddings`."""
    dimensions: Positive | None = None
    """Shortens each vector to this many dimensions."""
    normalized: bool = True
    """Whether to scale vectors to length 1."""
    embedding_type: Literal["float", "base64", "binary", "ubinary"] = "float"
    """The number type of the vectors. `base64` encodes little-endian float32."""
    truncate: bool = True
    """Whether to truncate texts longer than the model reads. If not, such texts are refused."""
    late_chunking: bool = False
    """Must be `false`, because each text is encoded separately."""

    @override
    def items(self) -> list[Any]:
        return self._native().items()

    def _native(self) -> EmbedBody:
        return EmbedBody(
            model=self.model,
            input=_texts(self.input if isinstance(self.input, list) else [self.input]),
            dimensions=self.dimensions,
            normalize=self.normalized,
            truncate=self.truncate,
            outputs=("multi_vector",) if self.return_multivector else ("dense",),
            input_type="query" if (self.task or "").endswith("query") else "document",
        )

    def request(self, model: str = "") -> InferenceRequest:
        """Return the equivalent request of the native route `POST /v1/embed`."""
        if self.late_chunking:
            raise InvalidRequest("`late_chunking` is not supported; leave it out.")
        return self._native().request()

    @override
    def write(self, answer: Answer) -> dict[str, Any]:
        packed = self.embedding_type == "base64"
        kind: NumberType = "float" if self.embedding_type == "base64" else self.embedding_type
        if not self.return_multivector:
            return _vectors(answer, kind, packed=packed)
        results = joined_results(answer, 1, kind, packed=packed)
        return {
            "data": [
                {"object": "embedding", "index": index, "embeddings": _matrix(result).multi_vector}
                for index, result in enumerate(results)
            ]
        }


class VoyageEmbeddingsBody(_NamedBody, frozen=True, kw_only=True):
    """Turn texts into vectors, as in Voyage's API."""

    input: str | list[str]
    """A text, or a list of texts."""
    input_type: Literal["query", "document"] | None = None
    """Ignored, because Sluicegate adds no prompt to texts."""
    truncation: bool = True
    """Whether to truncate texts longer than the model reads. If not, such texts are refused."""
    output_dimension: Positive | None = None
    """Shortens each vector to this many dimensions, and scales it to length 1 again."""
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = None
    """The number type of the vectors. The default is `float`."""
    encoding_format: Literal["base64"] | None = None
    """With `base64`, vectors are base64 strings, as Voyage's client expects."""

    @override
    def items(self) -> list[Any]:
        return self.input if isinstance(self.input, list) else [self.input]

    def request(self, model: str = "") -> InferenceRequest:
        """Return the equivalent request of the native route `POST /v1/embed`."""
        return EmbedBody(
            model=self.model,
            input=self.items(),
            dimensions=self.output_dimension,
            truncate=self.truncation,
        ).request()

    @override
    def write(self, answer: Answer) -> dict[str, Any]:
        return _vectors(
            answer, self.output_dtype or "float", packed=self.encoding_format is not None
        )


class JinaRerankBody(_NamedBody, frozen=True, kw_only=True):
    """Order documents by relevance to a query, as in Jina's API."""

    query: str
    """The query with which documents are compared."""
    documents: list[str | JinaTextItem]
    """The texts to order."""
    top_n: Positive | None = None
    """How many documents to return, from the highest score on. The default is all."""
    return_documents: bool = True
    """Whether results include the documents."""

    @override
    def items(self) -> list[Any]:
        return _texts(self.documents)

    def request(self, model: str = "") -> InferenceRequest:
        """Return the equivalent request of the native route `POST /v1/rerank`."""
        return RerankBody(model=self.model, query=self.query, documents=self.items()).request()

    @override
    def write(self, answer: Answer) -> dict[str, Any]:
        shown = [{"text": text} for text in self.items()] if self.return_documents else None
        return {"results": _ranked(answer, self.top_n, shown)}


class VoyageRerankBody(_NamedBody, frozen=True, kw_only=True):
    """Order documents by relevance to a query, as in Voyage's API."""

    query: str
    """The query with which documents are compared."""
    documents: list[str]
    """The texts to order."""
    top_k: Positive | None = None
    """How many documents to return, from the highest score on. The default is all."""
    return_documents: bool = False
    """Whether results include the documents."""
    truncation: bool = True
    """Whether to truncate texts longer than the model reads. If not, such texts are refused."""

    @override
    def items(self) -> list[Any]:
        return self.documents

    def request(self, model: str = "") -> InferenceRequest:
        """Return the equivalent request of the native route `POST /v1/rerank`."""
        return RerankBody(
            model=self.model, query=self.query, documents=self.documents, truncate=self.truncation
        ).request()

    @override
    def write(self, answer: Answer) -> dict[str, Any]:
        shown = self.documents if self.return_documents else None
        return {"data": _ranked(answer, self.top_k, shown)}


class NamedRoute(InferenceRoute):
    """Serves `POST` on one path of Jina's or Voyage's API."""

    def __init__(self, path: str, task: Task, body: type[_NamedBody]) -> None:
        self.path = path
        self.task = task
        self._decode = BodyDecoder(body)
        super().__init__()

    @override
    def decode(self, source: BodySource) -> Any:
        return self._decode(source.raw)

    @override
    def encode(
        self, body: _NamedBody, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        tokens = input_tokens(answer)
        about = {
            "object": "list",
            "model": answer.model.info.name,
            "usage": {"total_tokens": tokens, "prompt_tokens": tokens},
        }
        return Rendered(JSON, _encode(about | body.write(answer)))


class NamedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tokens of a request, including the tokens of cached items."""

    total_tokens: int
    """The number of tokens of all texts, as the model reads them."""
    prompt_tokens: int
    """The same number again."""


class NamedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the fields that all responses share."""

    object: Literal["list"]
    """A constant."""
    model: str
    """The model that was used."""
    usage: NamedUsage
    """The number of tokens of the request."""


class NamedEmbedding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The vector of a text, or the vectors of its tokens."""

    object: Literal["embedding"]
    """A constant."""
    index: int
    """The index of the vector's text in the input."""
    embedding: list[float] | str | None = None
    """The numbers, or a base64 string."""
    embeddings: list[list[float] | str] | None = None
    """The vectors of tokens, with `return_multivector` of Jina's API."""


class NamedEmbeddings(NamedAnswer, frozen=True, kw_only=True):
    """Vectors of all texts."""

    data: list[NamedEmbedding]
    """A vector for each text, in the order of the input."""


class JinaDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A document's index in the request, and its score."""

    index: int
    """The index of the document in `documents`, from 0."""
    relevance_score: float
    """The relevance to the query. Higher is more relevant."""
    document: JinaTextItem | None = None
    """The document, if `return_documents` was set."""


class JinaDocuments(NamedAnswer, frozen=True, kw_only=True):
    """The documents, from the highest score to the lowest."""

    results: list[JinaDocument]
    """The documents, from the highest score to the lowest."""


class VoyageDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A document's index in the request, and its score."""

    index: int
    """The index of the document in `documents`, from 0."""
    relevance_score: float
    """The relevance to the query. Higher is more relevant."""
    document: str | None = None
    """The document, if `return_documents` was set."""


class VoyageDocuments(NamedAnswer, frozen=True, kw_only=True):
    """The documents, from the highest score to the lowest."""

    data: list[VoyageDocument]
    """The documents, from the highest score to the lowest."""


def _texts(values: list[Any]) -> list[Any]:
    return [value.text if isinstance(value, JinaTextItem) else value for value in values]


def _vectors(answer: Answer, kind: NumberType, *, packed: bool) -> dict[str, Any]:
    render = as_base64 if packed else as_json
    return {
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": msgspec.Raw(bytes(render(outcome.result, kind))),
            }
            for index, outcome in enumerate(answer.outcomes)
        ]
    }


def _ranked(answer: Answer, most: int | None, shown: list[Any] | None) -> list[dict[str, Any]]:
    return [
        {"index": index, "relevance_score": score}
        | ({} if shown is None else {"document": shown[index]})
        for index, score in ranking(answer, most)
    ]


_QUERY: Any = {
    "model": "minilm",
    "query": "How do I reset my card PIN?",
    "documents": ["Change your PIN at any cash machine.", "We are hiring."],
}
_ABOUT: Any = {
    "object": "list",
    "model": "minilm",
    "usage": {"total_tokens": 4, "prompt_tokens": 4},
}
_VECTOR: Any = _ABOUT | {"data": [{"object": "embedding", "index": 0, "embedding": [0.0676]}]}
_BEST: Any = [{"index": 0, "relevance_score": 0.71}]


def _dialect(
    name: str, embeddings: type[_NamedBody], rerank: type[_NamedBody], documents: type[NamedAnswer]
) -> Dialect:
    product = name.capitalize()
    embed_route = NamedRoute(f"/{name}/v1/embeddings", Task.EMBED, embeddings)
    rerank_route = NamedRoute(f"/{name}/v1/rerank", Task.RERANK, rerank)
    return Dialect(
        name=name,
        description=f"The routes of {product}'s clients: set their base URL to `/{name}/v1` here.",
        routes={
            embed_route: dialect_operation(
                embed_route,
                dialect=name,
                id=f"{name}_embeddings",
                summary=f"Turn texts into vectors, as {product} does",
                body=embeddings,
                example={"model": "minilm", "input": ["a sentence"]},
                answer=NamedEmbeddings,
                answer_example=_VECTOR,
            ),
            rerank_route: dialect_operation(
                rerank_route,
                dialect=name,
                id=f"{name}_rerank",
                summary=f"Order documents by a query, as {product} does",
                body=rerank,
                example=_QUERY,
                answer=documents,
                answer_example=_ABOUT | {documents.__struct_fields__[-1]: _BEST},
            ),
        },
    )


JINA = _dialect("jina", JinaEmbeddingsBody, JinaRerankBody, JinaDocuments)
VOYAGE = _dialect("voyage", VoyageEmbeddingsBody, VoyageRerankBody, VoyageDocuments)
