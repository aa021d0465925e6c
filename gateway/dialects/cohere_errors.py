"""Writes errors as Cohere does: an object with a `message`."""

import msgspec
from typing_extensions import override

from gateway.api.error_format import ErrorFormat
from gateway.errors import GatewayError


class CohereError(msgspec.Struct, frozen=True, kw_only=True):
    """An error as Cohere's clients read it."""

    message: str
    """What was wrong, and what to do."""
    code: str
    """What programs should look at; it is stable."""
    id: str
    """Names the request, as `X-Request-Id` does."""


class CohereErrorFormat(ErrorFormat):
    """Writes errors of Cohere's routes, whose clients know the statuses."""

    media = "application/json"
    type = CohereError

    @override
    def encode(self, error: GatewayError, request_id: str) -> bytes:
        written = CohereError(message=error.detail, code=error.code, id=request_id)
        return msgspec.json.encode(written)


COHERE_ERRORS = CohereErrorFormat()
