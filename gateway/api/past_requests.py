"""Serves the routes that tell what became of requests."""

from typing import Annotated, Any, Protocol

import msgspec
from litestar import Controller, Request, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter, SkipValidation

from sluicegate.gateway.api.admission import PRINCIPAL
from sluicegate.gateway.api.openapi_parts import Kind, Operation
from sluicegate.gateway.errors import DependencyUnavailable, NotFound, RateLimited
from sluicegate.gateway.ledger.types import PastRequest
from sluicegate.gateway.types import Principal

_ID = {
    "description": "The `X-Request-Id` of its answer.",
    "example": "req_1f0c5a9e7d3b2c4800000000a7",
}
_CLIENT_ID = {
    "description": "The `X-Client-Request-Id` of the requests.",
    "example": "order-4711",
}


class PastRequestList(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were answered."""

    data: list[PastRequest]
    """At most 100 requests, the newest first."""


class RequestSource(Protocol):
    """Finds requests that were recorded."""

    async def find(self, caller: Principal, request_id: str) -> PastRequest | None:
        """Return a request of the caller's tenant and its key's models, `None` if unknown.

        Raises:
            DependencyUnavailable: the ledger cannot be reached.
        """
        ...

    async def find_all(self, caller: Principal, client_id: str) -> list[PastRequest]:
        """Return the requests to which the caller's tenant gave this id, the newest first.

        Of a key that is limited to models, those are left out that are for other models.

        Raises:
            DependencyUnavailable: the ledger cannot be reached.
        """
        ...


class PastRequestController(Controller):
    """Tells what became of requests."""

    path = "/v1/requests"

    @get(
        "/{request_id:str}",
        opt={
            "operation": Operation(
                id="get_request",
                summary="What became of a request",
                tag="metadata",
                kind=Kind.LIMITED,
                errors=(RateLimited, DependencyUnavailable, NotFound),
                about={"request_id": _ID},
            )
        },
    )
    async def show(
        self,
        request_id: FromPath[str],
        request: Request[Any, Any, Any],
        requests: NamedDependency[SkipValidation[RequestSource]],
    ) -> PastRequest:
        """Return a request of the calling tenant by its id; of a key for some models, of those."""
        caller: Principal = request.scope["state"][PRINCIPAL]
        found = await requests.find(caller, request_id)
        if found is None:
            raise NotFound(
                "No request of this id is recorded; it appears about a second after its answer, and"
                " is kept for some days."
            )
        return found

    @get(
        "/",
        opt={
            "operation": Operation(
                id="list_requests",
                summary="Requests by your own id",
                tag="metadata",
                kind=Kind.LIMITED,
                errors=(RateLimited, DependencyUnavailable),
                about={"client_id": _CLIENT_ID},
            )
        },
    )
    async def list_requests(
        self,
        client_id: Annotated[str, QueryParameter(min_length=1, max_length=128)],
        request: Request[Any, Any, Any],
        requests: NamedDependency[SkipValidation[RequestSource]],
    ) -> PastRequestList:
        """Return the calling tenant's requests that were sent with this id of its own."""
        caller: Principal = request.scope["state"][PRINCIPAL]
        return PastRequestList(data=await requests.find_all(caller, client_id))
