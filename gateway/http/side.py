"""Gives the HTTP server the parts that are the gateway's own: problem documents, the fast path."""

import secrets
from collections.abc import Callable
from typing import Final

from sluicegate.gateway.errors import (
    GatewayError,
    HeaderFieldsTooLarge,
    InternalError,
    InvalidRequest,
    Overloaded,
    RateLimited,
    RequestTimeout,
    TransferCodingNotSupported,
    VersionNotSupported,
)
from sluicegate.gateway.http.problem_details import MEDIA_TYPE, encode_problem, problem_headers
from sluicegate.wire.http.connection import Connection, Front
from sluicegate.wire.http.messages import answer_head, header_lines
from sluicegate.wire.http.refusals import Refusal
from sluicegate.wire.http.writing import WriteCoalescer

_RETRY_AFTER: Final = 1.0
_ERRORS: Final[dict[int, type[GatewayError]]] = {
    error.status: error
    for error in (
        InvalidRequest,
        RequestTimeout,
        HeaderFieldsTooLarge,
        TransferCodingNotSupported,
        VersionNotSupported,
        RateLimited,
        Overloaded,
    )
}


def error_of(refusal: Refusal) -> GatewayError:
    """Return the error that tells a customer of a refusal."""
    kind = _ERRORS.get(refusal.status)
    if kind is None:
        return InternalError("The gateway failed; its log says why.")
    return kind(refusal.detail, retry_after=_RETRY_AFTER if kind.retryable else None)


class GatewaySide:
    """Refuses by problem documents. `new_id` makes the id of each request that is refused."""

    answers_half_closed = True

    def __init__(
        self,
        *,
        new_id: Callable[[], str] = lambda: f"req_{secrets.token_hex(13)}",
        make_front: Callable[[Connection], Front] | None = None,
        coalescer: WriteCoalescer | None = None,
    ) -> None:
        self.coalescer = coalescer or WriteCoalescer()
        self._new_id = new_id
        self._make_front = make_front

    def front(self, connection: Connection) -> Front | None:
        """Return the fast path of a connection, if it has one."""
        return None if self._make_front is None else self._make_front(connection)

    def refusal(self, refusal: Refusal, default_lines: bytes) -> bytes:
        """Return the answer that refuses a request; it closes the connection."""
        error, request_id = error_of(refusal), self._new_id()
        body = encode_problem(error, request_id)
        headers = [
            (b"content-type", MEDIA_TYPE),
            (b"x-request-id", request_id.encode()),
            (b"cache-control", b"no-store"),
            *problem_headers(error),
        ]
        lines, length = header_lines(headers), len(body)
        return answer_head(error.status, lines, length, default_lines, is_last=True) + body
