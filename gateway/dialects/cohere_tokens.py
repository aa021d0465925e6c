"""Serves Cohere's bodies on the native routes `POST /v1/tokenize` and `POST /v1/detokenize`.

Cohere's bodies hold a single text in the field `text`, or its tokens in the field `tokens`. Native
bodies have neither field.
"""

from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.inference_route import JSON, Rendered
from sluicegate.gateway.api.schemas import DetokenizeBody, TokenizeBody
from sluicegate.gateway.dialects.cohere_route import SharedRoute
from sluicegate.gateway.dialects.stored_results import text_in, tokens_in
from sluicegate.gateway.types import Answer, InferenceRequest, RequestId

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
        """Return the tokens as one item, or no item if there are no tokens."""
        return [self.tokens] if self.tokens else []

    def request(self, model: str = "") -> InferenceRequest:
        """Return the request of the native route."""
        return DetokenizeBody(model=self.model, ids=[*self.tokens]).request()

    def answer(self, result: bytes) -> dict[str, Any]:
        """Return the response without its metadata."""
        return {"text": text_in(result)}


class CohereTokensRoute(SharedRoute):
    """Serves a route for tokens that accepts Sluicegate's own (native) body and Cohere's body."""

    @override
    def encode_cohere(self, body: Any, answer: Answer, request_id: RequestId) -> Rendered:
        return Rendered(JSON, _encode(body.answer(answer.outcomes[0].result) | {"meta": _META}))


COHERE_TOKENS = (
    CohereTokensRoute(TokenizeBody, CohereTokenizeBody, mark="text"),
    CohereTokensRoute(DetokenizeBody, CohereDetokenizeBody, mark="tokens"),
)
"""The native routes for tokens. They accept Cohere's bodies, too."""
