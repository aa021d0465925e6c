"""Builds the errors of the steps before the work of a request."""

from gateway.api.answers import PRIVATE
from gateway.api.error_format import PROBLEMS, ErrorFormat
from gateway.api.error_handling import gateway_error
from gateway.api.http import HttpReply
from gateway.http.problem_details import problem_lines
from gateway.types import RequestId


def problem_reply(
    error: Exception, id_: RequestId, limit_lines: bytes = b"", *, errors: ErrorFormat = PROBLEMS
) -> HttpReply:
    """Return the reply to a request that ends with `error`; an unexpected one is logged."""
    known = gateway_error(error, id_)
    lines = b"content-type: %b\r\n%bx-request-id: %b%b%b" % (
        errors.media.encode(),
        problem_lines(known),
        id_.encode(),
        PRIVATE,
        limit_lines,
    )
    return HttpReply(errors.status(known), lines, errors.encode(known, id_))
