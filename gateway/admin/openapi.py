"""Lists the operations of the operators' OpenAPI document."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version

from litestar.di import Provide
from litestar.types import ControllerRouterHandler

from gateway.admin.answers import (
    BrokenModelsProblem,
    CacheTiers,
    Regions,
    UsagePage,
)
from gateway.admin.configuration import ActiveConfig, Rollback
from gateway.admin.models import ReloadResult
from gateway.admin.operations import OperatorsReadiness
from gateway.admin.publishing import CheckedDocument, PublishedChange
from gateway.api.openapi import DocumentInfo, build_document, described_by_litestar
from gateway.api.openapi_parts import MOMENT, PROBLEM_JSON, Content, Json, Operation
from gateway.config.document import Document
from gateway.errors import (
    ConfigurationError,
    Conflict,
    DependencyUnavailable,
    ModelsBroken,
    NotFound,
    PreconditionFailed,
)
from gateway.ledger.invoices import Invoice
from gateway.ledger.types import GroupBy

TAGS = {
    "configuration": "The document that workers follow.",
    "accounts": "Tenants, their keys and limits.",
    "billing": "Usage, invoices, and who changed what.",
    "operations": "Caches, models, regions and metrics.",
    "health": "Probes for balancers and orchestrators.",
}

_LIMITS = [{"name": "minute", "unit": "requests", "capacity": 600, "window": 60.0}]
_TENANT: Json = {"description": "The id of a tenant.", "example": "acme"}
_KEY: Json = {"description": "The id of a key, not its text.", "example": "key_5f2c51d0a7be9f2c"}
_REGION: Json = {"description": "A region of the document.", "example": "eu"}
_BACKEND: Json = {
    "description": "The id of a backend, or of an entry with a name.",
    "example": "eu-1",
}
_FORMAT: Json = {"description": "CSV has a line for each row, below a head."}
_ETAG: Json = {"description": "The `ETag` of the document to be replaced.", "example": "*"}
_MONTH: Json = {
    "description": "A month in UTC.",
    "schema": {"pattern": r"^[0-9]{4}-(0[1-9]|1[0-2])$"},
    "example": "2026-11",
}
_CSV = Content(media="text/csv", schema={"type": "string"})
_DONE, _PENDING = "Done, and every worker knows", "Done; not every worker knows yet"
_SOON = {200: (Content(summary=_DONE),), 202: (Content(summary=_PENDING),)}
_BACKENDS = [{"id": "eu-1", "url": "http://10.0.0.7:8100"}]
_DOCUMENT = {
    "regions": [{"name": "eu", "pools": [{"backends": _BACKENDS}]}],
    "models": {"sentiment": {"cache_ttl": 3600.0}},
}
_YAML = """\
regions:
- name: eu
  pools:
  - backends:
    - {id: eu-1, url: "http://10.0.0.7:8100"}
models:
  sentiment: {cache_ttl: 3600}
"""


def _change(kind: object) -> Mapping[int, tuple[Content, ...]]:
    return {
        200: (Content(type=kind, summary="Published, and every worker follows"),),
        202: (Content(type=PublishedChange, summary="Published; not every worker follows yet"),),
    }


_ACCOUNTS: dict[tuple[str, str], Operation] = {
    ("get", "/admin/tenants"): Operation(
        id="list_tenants", summary="All tenants", tag="accounts", errors=(DependencyUnavailable,)
    ),
    ("post", "/admin/tenants"): Operation(
        id="create_tenant",
        summary="Create a tenant",
        tag="accounts",
        errors=(Conflict, DependencyUnavailable),
        body=(Content(example={"id": "acme", "name": "Acme Ltd.", "limits": _LIMITS}),),
    ),
    ("get", "/admin/tenants/{tenant}"): Operation(
        id="get_tenant",
        summary="One tenant",
        tag="accounts",
        errors=(NotFound, DependencyUnavailable),
        about={"tenant": _TENANT},
    ),
    ("put", "/admin/tenants/{tenant}/limits"): Operation(
        id="set_tenant_limits",
        summary="Replace a tenant's limits",
        tag="accounts",
        errors=(NotFound, DependencyUnavailable),
        body=(Content(example=_LIMITS),),
        about={"tenant": _TENANT},
    ),
    ("get", "/admin/keys"): Operation(
        id="list_keys",
        summary="The keys of a tenant, or all",
        tag="accounts",
        errors=(NotFound, DependencyUnavailable),
        about={"tenant": _TENANT},
    ),
    ("post", "/admin/keys"): Operation(
        id="create_key",
        summary="Create a key",
        tag="accounts",
        errors=(NotFound, Conflict, DependencyUnavailable),
        body=(Content(example={"tenant": "acme", "name": "website"}),),
    ),
    ("put", "/admin/keys/{key}/limits"): Operation(
        id="set_key_limits",
        summary="Replace a key's limits",
        tag="accounts",
        errors=(NotFound, DependencyUnavailable),
        body=(Content(example=_LIMITS),),
        about={"key": _KEY},
    ),
    ("delete", "/admin/keys/{key}"): Operation(
        id="revoke_key",
        summary="Revoke a key",
        tag="accounts",
        errors=(NotFound, DependencyUnavailable),
        about={"key": _KEY},
    ),
}

_CONFIGURATION: dict[tuple[str, str], Operation] = {
    ("get", "/admin/config"): Operation(
        id="get_config",
        summary="What is active, and its history",
        tag="configuration",
        errors=(NotFound, ConfigurationError, DependencyUnavailable),
        answers={200: (Content(type=ActiveConfig, summary="What is active"),)},
        headers=("ETag",),
    ),
    ("put", "/admin/config"): Operation(
        id="replace_config",
        summary="Publish a document in place of everything",
        tag="configuration",
        errors=(
            *(PreconditionFailed, ConfigurationError),
            *(Conflict, DependencyUnavailable),
        ),
        body=(
            Content(type=Document, example=_DOCUMENT),
            Content(schema={"type": "string"}, media="application/yaml", example=_YAML),
        ),
        answers=_change(PublishedChange | CheckedDocument),
        headers=("ETag",),
        about={
            "if-match": _ETAG,
            "dry_run": {"description": "Check the document, and publish nothing."},
        },
    ),
    ("post", "/admin/config/reload"): Operation(
        id="reload_config",
        summary="Publish the configuration folder",
        tag="configuration",
        errors=(ConfigurationError, Conflict, DependencyUnavailable),
        answers=_change(PublishedChange),
        headers=("ETag",),
    ),
    ("post", "/admin/config/rollback"): Operation(
        id="roll_back_config",
        summary="Publish an earlier document again",
        tag="configuration",
        errors=(NotFound, ConfigurationError, Conflict, DependencyUnavailable),
        body=(Content(type=Rollback, example={"generation": 1}),),
        is_body_required=False,
        answers=_change(PublishedChange),
        headers=("ETag",),
    ),
}

_BILLING: dict[tuple[str, str], Operation] = {
    ("get", "/admin/usage"): Operation(
        id="get_usage",
        summary="Usage of a tenant, or of all",
        tag="billing",
        errors=(NotFound, ConfigurationError, DependencyUnavailable),
        answers={200: (Content(type=UsagePage, summary="A row for each group"), _CSV)},
        about={
            "tenant": _TENANT,
            "from": MOMENT,
            "to": MOMENT | {"example": "2026-12-01T00:00:00Z"},
            "group_by": {
                "description": f"A list, with commas, of {', '.join(GroupBy)}.",
                "example": "tenant,model",
            },
            "format": _FORMAT,
        },
    ),
    ("get", "/admin/invoices"): Operation(
        id="get_invoice",
        summary="A tenant's invoice for a month",
        tag="billing",
        errors=(NotFound, ConfigurationError, DependencyUnavailable),
        answers={200: (Content(type=Invoice, summary="The invoice"), _CSV)},
        about={"tenant": _TENANT, "month": _MONTH, "format": _FORMAT},
    ),
    ("get", "/admin/audit"): Operation(
        id="list_audit",
        summary="Who changed what, when",
        tag="billing",
        errors=(DependencyUnavailable,),
        about={
            "limit": {"description": "So many entries at most."},
            "before": {"description": "The number of the last entry that is known."},
        },
    ),
}

_OPERATIONS: dict[tuple[str, str], Operation] = {
    ("get", "/admin/cache"): Operation(
        id="get_cache",
        summary="Sizes and counts of the result cache",
        tag="operations",
        errors=(DependencyUnavailable,),
        answers={200: (Content(type=CacheTiers),)},
    ),
    ("post", "/admin/cache/purge"): Operation(
        id="purge_cache",
        summary="Forget cached answers",
        tag="operations",
        errors=(NotFound, DependencyUnavailable),
        body=(Content(example={"model": "sentiment"}),),
        answers=_SOON,
    ),
    ("post", "/admin/models/reload"): Operation(
        id="reload_models",
        summary="Have backends read their repositories",
        tag="operations",
        errors=(ModelsBroken, DependencyUnavailable),
        answers={
            200: (Content(type=ReloadResult, summary=_DONE),),
            202: (Content(type=ReloadResult, summary=_PENDING),),
            422: (
                Content(type=BrokenModelsProblem, media=PROBLEM_JSON, summary="A model is broken"),
            ),
        },
    ),
    ("get", "/admin/regions"): Operation(
        id="list_regions",
        summary="The backends of each region",
        tag="operations",
        errors=(ConfigurationError, DependencyUnavailable),
        answers={200: (Content(type=Regions),)},
    ),
    ("get", "/admin/regions/shares"): Operation(
        id="list_shares",
        summary="What gateway regions may use of limits",
        tag="operations",
        errors=(NotFound, DependencyUnavailable),
        about={"tenant": _TENANT},
    ),
    ("post", "/admin/regions/{region}/backends/{backend}/drain"): Operation(
        id="drain_backend",
        summary="Give a backend no more work",
        tag="operations",
        errors=(NotFound, ConfigurationError, DependencyUnavailable),
        answers=_SOON,
        about={"region": _REGION, "backend": _BACKEND},
    ),
    ("post", "/admin/regions/{region}/backends/{backend}/restore"): Operation(
        id="restore_backend",
        summary="Give a drained backend work again",
        tag="operations",
        errors=(NotFound, ConfigurationError, DependencyUnavailable),
        answers=_SOON,
        about={"region": _REGION, "backend": _BACKEND},
    ),
    ("get", "/metrics"): Operation(
        id="get_metrics",
        summary="The metrics of all workers",
        tag="operations",
        answers={
            200: (
                Content(
                    media="text/plain",
                    schema={"type": "string"},
                    summary="As Prometheus reads them",
                ),
            )
        },
    ),
}

_HEALTH: dict[tuple[str, str], Operation] = {
    ("get", "/health/live"): Operation(
        id="is_live", summary="Whether the process answers", tag="health"
    ),
    ("get", "/health/ready"): Operation(
        id="is_ready",
        summary="Whether changes can be made",
        tag="health",
        answers={
            200: (Content(type=OperatorsReadiness, summary="Ready"),),
            503: (Content(type=OperatorsReadiness, summary="Not ready, or too many connections"),),
        },
    ),
}

OPERATIONS = _CONFIGURATION | _ACCOUNTS | _BILLING | _OPERATIONS | _HEALTH


def operators_document(
    handlers: Sequence[ControllerRouterHandler], dependencies: Mapping[str, Provide]
) -> bytes:
    """Return the OpenAPI document of `handlers` as JSON."""
    about = DocumentInfo(
        title="Sluicegate for operators",
        version=version("sluicegate"),
        description="Configuration, tenants and keys, usage and invoices, caches and regions.",
        key="The admin key: `SLUICEGATE_ADMIN_KEY`.",
        tags=TAGS,
    )
    return build_document(about, described_by_litestar(handlers, dependencies), OPERATIONS)
