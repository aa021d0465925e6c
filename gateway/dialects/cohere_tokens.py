"""Serves Cohere's bodies on the native routes `POST /v1/tokenize` and `POST /v1/detokenize`.

Cohere's bodies have one text each: `text` or `tokens`, which no native body has.
"""

from typing import Any

import msgspec
from typing_extensions import override

from gateway.api.inference_route import JSON, BodySource, Rendered
from gateway.api.native_routes import NativeRoute
from gateway.api.schemas import Body, DetokenizeBody, TokenizeBody
from gateway.dialects.stored_results import text_in, tokens_in
from gateway.http.body_decoding import BodyDecoder
from gateway.types import Answer, InferenceRequest, RequestId, Usage

_encode = msgspec.json.encode
_META = {"api_version": {"version": "1"}}


class CohereTokenizeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Show the tokens of a text, as in Cohere's API."""

    model: str
    text: str

    def items(self) -> list[Any]:
        """Return the text."""
        return [self.text]

    def request(self, model: str = "") -> InferenceRequest:
        """Return the request of the native route."""
        return TokenizeBody(model=self.model, input=self.text, add_special_tokens=False).request()

    def answer(self, result: bytes) -> dict[str, Any]:
        """Return the response without its metadata."""
        found = tokens_in(result)
        return {"tokens": found.ids, "token_strings": found.tokens}


class CohereDetokenizeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Turn tokens into a text, as in Cohere's API."""

    model: str
    tokens: list[int]

    def items(self) -> list[Any]:
        """Return the tokens as one item; an empty list has no item, as on the native route."""
        return [self.tokens] if self.tokens else []

    def request(self, model: str = "") -> InferenceRequest:
        """Return the request of the native route."""
        return DetokenizeBody(model=self.model, ids=[*self.tokens]).request()

    def answer(self, result: bytes) -> dict[str, Any]:
        """Return the response without its metadata."""
        return {"text": text_in(result)}


class _HasText(msgspec.Struct, frozen=True):
    text: msgspec.Raw


class _HasTokens(msgspec.Struct, frozen=True):
    tokens: msgspec.Raw


class CohereTokensRoute(NativeRoute):
    """Serves a native route of tokens, for the native body and for Cohere's."""

    def __init__(self, native: type[Body], of_cohere: type[Any], marked_by: type[Any]) -> None:
        super().__init__(native)
        self._decode_cohere = BodyDecoder(of_cohere)
        self._decode_mark = BodyDecoder(marked_by)

    @override
    def decode(self, source: BodySource) -> Any:
        try:
            return super().decode(source)
        except msgspec.ValidationError:
            if not self._is_of_cohere(source.raw):
                raise
        return self._decode_cohere(source.raw)

    def _is_of_cohere(self, raw: bytes) -> bool:
        try:
            self._decode_mark(raw)
        except msgspec.ValidationError:
            return False
        return True

    @override
    def is_spliced(self, body: Any) -> bool:
        return isinstance(body, Body)

    @override
    def encode(self, body: Any, answer: Answer, usage: Usage, request_id: RequestId) -> Rendered:
        if isinstance(body, Body):
            return super().encode(body, answer, usage, request_id)
        return Rendered(JSON, _encode(body.answer(answer.outcomes[0].result) | {"meta": _META}))


COHERE_TOKENS = (
    CohereTokensRoute(TokenizeBody, CohereTokenizeBody, _HasText),
    CohereTokensRoute(DetokenizeBody, CohereDetokenizeBody, _HasTokens),
)
"""The native routes of tokens, which accept Cohere's bodies too."""
