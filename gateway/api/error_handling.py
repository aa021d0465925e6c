"""Makes answers of errors: for the steps before the work of a request, and for Litestar routes."""

import asyncio
import logging
from collections.abc import Mapping

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException

from sluicegate.gateway.api.answers import PRIVATE
from sluicegate.gateway.api.http import HttpReply
from sluicegate.gateway.errors import (
    GatewayError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    UpstreamUnavailable,
)
from sluicegate.gateway.http.body_decoding import UnknownField
from sluicegate.gateway.http.problem_details import (
    PROBLEMS,
    ErrorFormat,
    problem_headers,
    problem_lines,
)
from sluicegate.gateway.types import RequestId

_log = logging.getLogger(__name__)
# What Litestar says of a request without the body that a handler takes.
_NO_BODY = ("data", "'data'")
NO_ROUTE = "There is no such route; GET /docs shows those there are."
_OF_LITESTAR: dict[int, tuple[type[GatewayError], str]] = {
    404: (NotFound, NO_ROUTE),
    405: (MethodNotAllowed, "The route answers other methods; GET /docs shows which."),
    413: (PayloadTooLarge, "The body is larger than this route takes."),
}


def problem_reply(
    error: Exception, id_: RequestId, own_lines: bytes = b"", *, errors: ErrorFormat = PROBLEMS
) -> HttpReply:
    """Return the reply to a request that ends with `error`; an unexpected one is logged."""
    known = gateway_error(error, id_)
    lines = b"content-type: %b\r\n%bx-request-id: %b%b%b" % (
        errors.media.encode(),
        problem_lines(known),
        id_.encode(),
        PRIVATE,
        own_lines,
    )
    return HttpReply(errors.status(known), lines, errors.encode(known, id_))


def problem_response(
    error: Exception, request_id: str, headers: Mapping[str, str], errors: ErrorFormat = PROBLEMS
) -> Response[bytes]:
    """Return the response that reports `error`, with `headers` and the error's own headers."""
    known = gateway_error(error, request_id)
    own = {name.decode(): value.decode() for name, value in problem_headers(known)}
    framework = error.headers or {} if isinstance(error, HTTPException) else {}  # `Allow`
    return Response(
        errors.encode(known, request_id),
        status_code=errors.status(known),
        media_type=errors.media,
        headers={**headers, **own, **framework},
    )


def gateway_error(error: BaseException, request_id: str) -> GatewayError:
    """Return `error` as an error of the gateway. Log an unexpected error with the id."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, asyncio.CancelledError):
        # Only the server cancels a request: its time to let them end is over.
        return UpstreamUnavailable("The gateway is stopping; try again.", retry_after=1.0)
    if isinstance(error, HTTPException) and error.status_code < InternalError.status:
        if error.status_code in _OF_LITESTAR:
            kind, detail = _OF_LITESTAR[error.status_code]
            return kind(detail)
        reason = _reason(error)
        return InvalidRequest(f"The request does not fit the route: {reason}.{more_about(reason)}")
    _log.error("unexpected failure", exc_info=error, extra={"request_id": request_id})
    return InternalError("The gateway failed; report it with the `request_id`, which its log has.")


def misfit(error: msgspec.ValidationError) -> InvalidRequest:
    """Return the error of a body that is JSON and does not fit its route."""
    known = error.known if isinstance(error, UnknownField) else None
    hint = f" Did you mean `{known}`?" if known else more_about(str(error))
    return InvalidRequest(f"The body does not fit the route: {error}.{hint}")


def more_about(reason: str) -> str:
    """Return a sentence that says where the values of a field are listed, if one is no such."""
    return " GET /docs shows which there are." if "Invalid enum value" in reason else ""


def _reason(error: HTTPException) -> str:
    """Return the cause, with the names of the parameters or fields where they are known."""
    extra = error.extra if isinstance(error.extra, list) else []
    named = [each for each in extra if isinstance(each, dict) and "key" in each]
    if [(each["key"], each["message"]) for each in named] == [_NO_BODY]:
        return "the body is empty; send JSON"
    return "; ".join(f"{_field(e['key'])}: {e['message']}" for e in named) or error.detail


def _field(key: str) -> str:
    """Return Litestar's `key` for callers; `data` is the handlers' parameter for the whole body."""
    return "the body" if key == "data" else f"`{key}`"
