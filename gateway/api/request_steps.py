"""Takes requests through the steps that all routes have in common, before their work.

Answers of the steps and of the work lack `IncomingRequest.added_lines`, which the sender adds.
"""

from collections.abc import Callable

from gateway.api.compressed_requests import inflate_body
from gateway.api.cross_origin import CrossOrigin
from gateway.api.error_format import ErrorFormat
from gateway.api.http import HttpReply
from gateway.api.idempotent_requests import ClaimedKey, IdempotentRequests
from gateway.api.incoming_request import IncomingBody, IncomingRequest
from gateway.api.problem_replies import problem_reply
from gateway.errors import GatewayError, PermissionDenied
from gateway.runtime.store import RuntimeStore
from gateway.types import RequestId


class RequestSteps:
    """The common steps of a worker. `errors_of` says how errors of a path are written."""

    def __init__(
        self,
        *,
        cross_origin: CrossOrigin,
        idempotency: IdempotentRequests,
        runtimes: RuntimeStore,
        errors_of: Callable[[str], ErrorFormat],
        new_id: Callable[[], RequestId],
    ) -> None:
        self._cross_origin = cross_origin
        self._idempotency = idempotency
        self._runtimes = runtimes
        self._errors_of = errors_of
        self._new_id = new_id

    def answer_early(self, request: IncomingRequest) -> HttpReply | None:
        """Return the answer to a preflight or to a request that is refused by its head."""
        try:
            return self._cross_origin.answer_early(request)
        except PermissionDenied as error:
            return self._problem(request, error)

    async def prepare(
        self, request: IncomingRequest, body: IncomingBody
    ) -> ClaimedKey | HttpReply | None:
        """Inflate the body, and claim the request's key.

        Return the answer if the work must not run. Return the key if it was claimed.

        Raises:
            ClientDisconnected: the caller is gone.
        """
        runtime = self._runtimes.current
        try:
            await inflate_body(request, body, runtime)
        except GatewayError as error:
            return self._problem(request, error)
        return await self._idempotency.claim(request, body, runtime)

    def _problem(self, request: IncomingRequest, error: GatewayError) -> HttpReply:
        return problem_reply(error, self._new_id(), errors=self._errors_of(request.path))
