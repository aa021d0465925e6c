"""Writes errors in Cohere's format: an object with a `message`."""

import msgspec
from typing_extensions import override

from sluicegate.gateway.errors import GatewayError
from sluicegate.gateway.http.problem_details import ErrorFormat


class CohereError(msgspec.Struct, frozen=True, kw_only=True):
    """An error in Cohere's format."""

    message: str
    """What was wrong, and what to do."""
    code: str
    """An error code for programs. It stays the same between versions."""
    id: str
    """The id of the request, as in `X-Request-Id`."""


class CohereErrorFormat(ErrorFormat):
    """Writes errors of Cohere's routes. The HTTP status is the same as on native routes."""

    media = "application/json"
    type = CohereError

    @override
    def encode(self, error: GatewayError, request_id: str) -> bytes:
        written = CohereError(message=error.detail, code=error.code, id=request_id)
        return msgspec.json.encode(written)


COHERE_ERRORS = CohereErrorFormat()
