"""Builds the operators' OpenAPI document; has what descriptions of several routes share."""

from functools import cache
from importlib.metadata import version

from litestar.types import ControllerRouterHandler

from gateway.api.code_samples import OPERATORS
from gateway.api.openapi import build_document, described_by_litestar
from gateway.api.openapi_parts import Content, Json
from gateway.errors import AuthenticationFailed, DependencyUnavailable, PermissionDenied

TAGS = {
    "configuration": "The document that workers follow.",
    "accounts": "Tenants, their keys and limits.",
    "operators": "Who operates the gateway, and may do what.",
    "billing": "Usage, invoices, and who changed what.",
    "operations": "Caches, models, regions and metrics.",
    "health": "Probes for balancers and orchestrators.",
}
TENANT: Json = {"description": "The id of a tenant.", "example": "acme"}
DONE, PENDING = "Done, and every worker knows", "Done; not every worker knows yet"
SOON = {200: (Content(summary=DONE),), 202: (Content(summary=PENDING),)}


@cache
def operators_document(
    handlers: tuple[ControllerRouterHandler, ...], dependencies: frozenset[str]
) -> bytes:
    """Return the OpenAPI document of `handlers` as JSON; `dependencies` are the names of theirs."""
    return build_document(
        described_by_litestar(handlers, dependencies),
        {},
        title="Sluicegate for operators",
        version=version("sluicegate"),
        description="Configuration, tenants and keys, usage and invoices, caches and regions.",
        key="The key of an operator, or a token of the identity provider.",
        tags=TAGS,
        samples=OPERATORS,
        of_keys=(AuthenticationFailed, PermissionDenied, DependencyUnavailable),
    )
