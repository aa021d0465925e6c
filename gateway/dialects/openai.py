"""Implements OpenAI's embeddings and moderations.

OpenAI's clients list models with the native route `GET /v1/models`.
"""

from typing import Any, Literal

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.api.results import SparseVector
from sluicegate.gateway.api.schemas import EmbedBody, Positive, texts_in_tokens
from sluicegate.gateway.api.vectors import as_base64, floats_as_json
from sluicegate.gateway.dialects.base import (
    dialect_operation,
    input_tokens,
    joined_results,
    takes_tokens,
    tokens_refused,
)
from sluicegate.gateway.dialects.openai_errors import OPENAI_ERRORS, PROBLEMS_AND_ERRORS
from sluicegate.gateway.dialects.openai_moderations import (
    ModerationsRoute,
    OpenAIModerations,
    OpenAIModerationsBody,
)
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.types import Answer, InferenceRequest, RequestId, Usage
from sluicegate.wire.protocol import EmbedOutput, Task, TokenId

_encode = msgspec.json.encode
_DENSE: tuple[EmbedOutput, ...] = ("dense",)


class OpenAIEmbeddingsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Turn texts into vectors, as in OpenAI's API."""

    model: str
    """The name of a model that makes vectors."""
    input: str | list[str | TokenId | list[TokenId]]
    """A text, or a list of texts. Some models are configured to accept token ids, too: a list of
    token ids is one text, and a list of such lists is several texts. `POST /v1/tokenize` of the
    same model returns token ids."""
    encoding_format: Literal["float", "base64"] = "float"
    """With `base64`, vectors are base64 strings of little-endian float32. OpenAI's clients use
    `base64` by default."""
    dimensions: Positive | None = None
    """Shortens each vector to this many dimensions, and scales it to length 1 again."""
    user: str | None = None
    """Ignored."""
    outputs: tuple[EmbedOutput, ...] = ("dense",)
    """Not in OpenAI's API: as in `POST /v1/embed`. Each output of a text is an item."""
    input_type: Literal["query", "document"] = "document"
    """Not in OpenAI's API: as in `POST /v1/embed`."""
    pool_factor: Positive = 1
    """Not in OpenAI's API: as in `POST /v1/embed`."""

    @property
    def is_dense(self) -> bool:
        """Whether only dense vectors are returned."""
        return self.outputs == _DENSE

    def texts(self) -> list[Any]:
        """Return the inputs."""
        given = self.input
        return texts_in_tokens(given, "input") if isinstance(given, list) else [given]

    def items(self) -> list[Any]:
        """Return the items: one for each output of an input."""
        return self.texts() if self.is_dense else self.native().items()

    def native(self) -> EmbedBody:
        """Return the equivalent body of the native route `POST /v1/embed`."""
        return EmbedBody(
            model=self.model,
            input=self.texts(),
            dimensions=self.dimensions,
            outputs=self.outputs,
            input_type=self.input_type,
            pool_factor=self.pool_factor,
        )

    def request(self, model: str = "") -> InferenceRequest:
        """Return the equivalent request of the native route `POST /v1/embed`."""
        return self.native().request()


class _TextsBody(OpenAIEmbeddingsBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accepts only texts. This type is decoded first, because it is fast and fits most requests."""

    input: str | list[str]  # type: ignore[assignment]  # a part of it

    @override
    def texts(self) -> list[Any]:
        return self.input if isinstance(self.input, list) else [self.input]


class OpenAIEmbedding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outputs of a text, usually one vector."""

    object: Literal["embedding"]
    """A constant."""
    index: int
    """The index of the vector's text in the input."""
    embedding: list[float] | str | None = None
    """The numbers, or a base64 string."""
    sparse: SparseVector | None = None
    """The weights of words, if `outputs` asks for them."""
    multi_vector: list[list[float] | str] | None = None
    """The vectors of tokens, if `outputs` asks for them."""


class OpenAIUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tokens of a request, including the tokens of cached items."""

    prompt_tokens: int
    """The number of tokens of all texts, as the model reads them."""
    total_tokens: int
    """The same number again."""


class OpenAIEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors of all texts."""

    object: Literal["list"]
    """A constant."""
    data: list[OpenAIEmbedding]
    """A vector for each text, in the order of the input."""
    model: str
    """The model that was used."""
    usage: OpenAIUsage
    """The number of tokens of the request."""


class EmbeddingsRoute(InferenceRoute):
    """Answers `POST /v1/embeddings`."""

    path = "/v1/embeddings"
    task = Task.EMBED
    errors = OPENAI_ERRORS
    _decode_texts = BodyDecoder(_TextsBody)
    _decode_tokens = BodyDecoder(OpenAIEmbeddingsBody)

    @override
    def decode(self, source: BodySource) -> OpenAIEmbeddingsBody:
        try:
            return self._decode_texts(source.raw)
        except msgspec.ValidationError:
            body = self._decode_tokens(source.raw)
        if not takes_tokens(source, body.model):
            raise tokens_refused("input")
        return body

    @override
    def encode(
        self, body: OpenAIEmbeddingsBody, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        parts: list[bytes | memoryview] = [b'{"object":"list","data":[']
        if body.is_dense:
            render = as_base64 if body.encoding_format == "base64" else floats_as_json
            for index, outcome in enumerate(answer.outcomes):
                start = b',{"object":"embedding","index":%d,"embedding":' % index
                parts += (start if index else start[1:], render(outcome.result), b"}")
        else:
            packed = body.encoding_format == "base64"
            results = joined_results(answer, len(body.outputs), "float", packed=packed)
            for index, result in enumerate(results):
                start = b',{"object":"embedding","index":%d,' % index
                parts += (start if index else start[1:], result[1:])
        tokens = input_tokens(answer, every=len(body.outputs))
        parts.append(
            b'],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}'
            % (_encode(answer.model.info.name), tokens, tokens)
        )
        return Rendered(JSON, b"".join(parts))


_EMBEDDINGS, _MODERATIONS = EmbeddingsRoute(), ModerationsRoute()
OPENAI = Dialect(
    name="openai",
    description="The routes of OpenAI's clients: set `base_url` to `/v1` of this gateway.",
    routes={
        _EMBEDDINGS: dialect_operation(
            _EMBEDDINGS,
            dialect="openai",
            id="openai_embeddings",
            summary="Turn texts into vectors, as OpenAI does",
            body=OpenAIEmbeddingsBody,
            example={"model": "minilm", "input": ["a sentence"], "encoding_format": "base64"},
            answer=OpenAIEmbeddings,
            answer_example={
                "object": "list",
                "data": [{"object": "embedding", "index": 0, "embedding": "AACAPw=="}],
                "model": "minilm",
                "usage": {"prompt_tokens": 4, "total_tokens": 4},
            },
        ),
        _MODERATIONS: dialect_operation(
            _MODERATIONS,
            dialect="openai",
            id="openai_moderations",
            summary="Find texts to moderate, as OpenAI does",
            body=OpenAIModerationsBody,
            example={"model": "sentiment", "input": ["a gorgeous, witty movie"]},
            answer=OpenAIModerations,
            answer_example={
                "id": "modr-req_1f0c5a9e7d3b2c4800000000a7",
                "model": "sentiment",
                "results": [
                    {
                        "flagged": False,
                        "categories": {"negative": False},
                        "category_scores": {"negative": 0.02},
                        "category_applied_input_types": {"negative": ["text"]},
                    }
                ],
            },
        ),
    },
    errors=PROBLEMS_AND_ERRORS,
    paths=("/v1/models", "/v1/chat/", "/v1/completions", "/v1/responses"),
)
