"""Defines how a route writes errors: problem documents, unless a dialect says otherwise."""

from typing import Any

from gateway.errors import GatewayError
from gateway.http.problem_details import MEDIA_TYPE, Problem, encode_problem


class ErrorFormat:
    """Writes errors as problem documents (RFC 9457). Dialects write theirs in subclasses."""

    media = MEDIA_TYPE.decode()
    type: Any = Problem
    """The type of the body, for the OpenAPI document."""

    def status(self, error: GatewayError) -> int:
        """Return the status that reports `error`, which may be its class in an example."""
        return error.status

    def encode(self, error: GatewayError, request_id: str) -> bytes:
        """Return the body that reports `error`."""
        return encode_problem(error, request_id)


PROBLEMS = ErrorFormat()
