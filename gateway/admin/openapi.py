"""Builds the operators' OpenAPI document."""

from functools import cache
from importlib.metadata import version

from litestar.types import ControllerRouterHandler

from sluicegate.gateway.api.code_samples import OPERATORS
from sluicegate.gateway.api.openapi import build_document, described_by_litestar
from sluicegate.gateway.errors import AuthenticationFailed, DependencyUnavailable, PermissionDenied

TAGS = {
    "configuration": "The configuration document that workers apply.",
    "accounts": "Tenants, their keys and limits.",
    "operators": "The people and programs that operate the gateway, and their roles.",
    "billing": "Usage, invoices and the audit log.",
    "operations": "Caches, models, regions and metrics.",
    "health": "Probes for load balancers and orchestrators.",
}


@cache
def operators_document(handlers: tuple[ControllerRouterHandler, ...]) -> bytes:
    """Return the OpenAPI document of `handlers` as JSON."""
    return build_document(
        described_by_litestar(handlers),
        {},
        title="Sluicegate for operators",
        version=version("sluicegate"),
        description="Configuration, tenants and keys, usage and invoices, caches and regions.",
        key="An operator's key, or a token of the identity provider.",
        tags=TAGS,
        samples=OPERATORS,
        of_keys=(AuthenticationFailed, PermissionDenied, DependencyUnavailable),
    )
