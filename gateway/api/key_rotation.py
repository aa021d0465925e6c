"""Serves the route by which the owner of a key gives it another text."""

from datetime import datetime
from typing import Annotated, Any, Protocol

import msgspec
from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from sluicegate.gateway.api.admission import PRINCIPAL
from sluicegate.gateway.api.incoming_request import INCOMING, IncomingRequest
from sluicegate.gateway.api.json_body import read_json
from sluicegate.gateway.api.openapi_parts import Content, Kind, Operation
from sluicegate.gateway.errors import DependencyUnavailable, RateLimited
from sluicegate.gateway.types import Principal

_DAY = 86_400.0


class RotationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says how long the present secret of the key stays valid."""

    former_valid_for: Annotated[float, msgspec.Meta(ge=0, le=7 * _DAY)] = _DAY
    """Seconds, up to seven days; 0 ends it at once."""


class RotatedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key with its new secret, which is shown only here."""

    id: str
    """The id of the key, which stays the same, as do its limits and rights."""
    key: str
    """The new text."""
    former_expires: datetime
    """Until when the text that the request came with is valid."""


class KeyRotation(Protocol):
    """Gives keys other texts."""

    async def rotate(self, caller: Principal, *, former: bytes, keep: float) -> RotatedKey:
        """Give the caller's key another text; `former`, its own, stays valid for `keep` seconds.

        Raises:
            DependencyUnavailable: the ledger cannot be reached; whether the text has changed is
                unknown where the confirmation of a commit was lost.
        """
        ...


class KeyRotationController(Controller):
    """Rotates the key that a request comes with."""

    path = "/v1/keys"

    @post(
        "/rotate",
        status_code=200,
        opt={
            "operation": Operation(
                id="rotate_key",
                summary="Replace the text of the calling key",
                tag="metadata",
                kind=Kind.LIMITED,
                errors=(RateLimited, DependencyUnavailable),
                body=(Content(type=RotationRequest, example={"former_valid_for": 3600}),),
                is_body_required=False,
            )
        },
    )
    async def rotate(
        self,
        request: Request[Any, Any, Any],
        rotation: NamedDependency[SkipValidation[KeyRotation]],
    ) -> RotatedKey:
        """Return the key's new text, which is shown this once."""
        incoming: IncomingRequest = request.scope["state"][INCOMING]
        incoming.has_secret_answer = True
        data = await read_json(request, RotationRequest, empty=b"{}")
        return await rotation.rotate(
            request.scope["state"][PRINCIPAL], former=incoming.key, keep=data.former_valid_for
        )
