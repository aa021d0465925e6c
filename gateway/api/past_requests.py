"""Serves the route that tells what became of a request."""

from datetime import datetime
from typing import Any, Protocol

import msgspec
from litestar import Controller, Request, get
from litestar.di import NamedDependency
from litestar.params import FromPath, SkipValidation

from gateway.api.admission import PRINCIPAL
from gateway.api.openapi_parts import Kind, Operation
from gateway.errors import DependencyUnavailable, NotFound, RateLimited
from gateway.ledger.types import RecordedRequest
from gateway.types import Principal

_ID = {
    "description": "The `X-Request-Id` of its answer.",
    "example": "req_1f0c5a9e7d3b2c4800000000a7",
}


class RequestUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a request used, as it is billed."""

    items: int
    """All items of the request."""
    hit: int
    """Items answered from the result cache."""
    collapsed: int
    """Items that joined equal work under way."""
    computed: int
    """Items computed for the request."""
    failed: int
    """Items that were not answered, and are not billed."""
    rows: int
    """Rows that models ran."""
    tokens: int
    """Tokens of these rows."""


class PastRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was answered."""

    id: str
    """Its id."""
    time: datetime
    """When it was answered; of several that were recorded together, when the first was."""
    key: str
    """The id of the API key that it came with."""
    model: str
    """The model, empty where it failed before one was known."""
    task: str
    """What was asked of the model."""
    status: int
    """The status of the answer."""
    code: str
    """The code of the error, if it was one."""
    region: str
    """The gateway region that answered."""
    revision: str
    """The revision of the model that answered."""
    usage: RequestUsage | None
    """What it used; nothing where requests were recorded together, of which only sums are kept."""


class RequestSource(Protocol):
    """Finds requests that were recorded."""

    async def find(self, caller: Principal, request_id: str) -> RecordedRequest | None:
        """Return a request of the caller's tenant and its key's models, `None` if unknown.

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
        return msgspec.convert(found, PastRequest, from_attributes=True)
