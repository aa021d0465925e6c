"""What callers ask besides inference: which models there are, and what they used."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Protocol

import msgspec
from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter, SkipValidation

from backends.protocol import Task
from gateway.api.request_headers import time_allowed
from gateway.api.revalidation import tagged
from gateway.config.document import Document, ModelEntry
from gateway.errors import DependencyUnavailable, InvalidRequest, ModelNotFound
from gateway.middleware.admission import PRINCIPAL
from gateway.types import Principal, RegionName, ServedModel, TenantId

GroupBy = Literal["model", "day", "key", "task"]
_DEFAULT_ENTRY = ModelEntry()
# Times are kept as nanoseconds since 1970 in 64 bits, which end in 2262.
_FIRST_YEAR, _LAST_YEAR = 1970, 2261


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model as a caller sees it; `id` and `object` are what OpenAI's clients look for."""

    id: str
    object: str
    name: str
    tasks: list[Task]
    revision: str
    profile: str
    max_tokens: int
    labels: list[str] | None = None
    dimensions: int | None = None
    description: str = ""
    demonstration: bool = False
    regions: list[RegionName]


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The models a key may use."""

    object: str = "list"
    data: list[ModelCard]


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one group; `cost` is in 10^-9 of `currency`."""

    group: dict[str, str]
    requests: int
    items: int
    hit: int
    collapsed: int
    computed: int
    failed: int
    rows: int
    tokens: int
    cost: int
    currency: str


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's usage from `since` (included) to `until` (not included), RFC 3339 in UTC."""

    since: str
    until: str
    data: list[UsageLine]


class ModelCatalog(Protocol):
    """Which models are served, as the backends say."""

    def model(self, name: str) -> ServedModel | None:
        """Return the model of that name."""
        ...

    def models(self) -> Sequence[ServedModel]:
        """Return every model."""
        ...


class UsageSource(Protocol):
    """Where usage is counted."""

    async def report(
        self, tenant: TenantId, since: datetime, until: datetime, group_by: Sequence[str]
    ) -> list[UsageLine]:
        """Return the tenant's usage, a line per group.

        Raises:
            DependencyUnavailable: it cannot be asked.
        """
        ...


class Documents(Protocol):
    """Gives the current configuration document."""

    def document(self) -> Document:
        """Return it."""
        ...


# Litestar need not check what this process made itself.
Models = NamedDependency[SkipValidation[ModelCatalog]]
CurrentDocuments = NamedDependency[SkipValidation[Documents]]
UsageOfTenants = NamedDependency[SkipValidation[UsageSource]]


class MetadataController(Controller):
    """Models and usage."""

    path = "/v1"
    tags = ("metadata",)

    @get("/models", operation_id="list_models", summary="The models this key may use")
    async def list_models(
        self, request: Request[Any, Any, Any], models: Models, documents: CurrentDocuments
    ) -> Response[ModelList]:
        """Return every model that is served and that the key may use."""
        document = documents.document()
        cards = [
            _card(model)
            for model in models.models()
            if _visible(model, document, _principal(request))
        ]
        return tagged(request, ModelList(data=cards))

    @get("/models/{model:str}", operation_id="get_model", summary="One model")
    async def get_model(
        self,
        model: FromPath[str],
        request: Request[Any, Any, Any],
        models: Models,
        documents: CurrentDocuments,
    ) -> Response[ModelCard]:
        """Return one model, 404 when there is none of that name."""
        found = models.model(model)
        if found is None or not _visible(found, documents.document(), _principal(request)):
            raise ModelNotFound(
                f"No model `{model}` is served; GET /v1/models lists those that are."
            )
        return tagged(request, _card(found))

    @get("/usage", operation_id="get_usage", summary="The calling tenant's usage and cost")
    async def get_usage(
        self,
        request: Request[Any, Any, Any],
        usage: UsageOfTenants,
        documents: CurrentDocuments,
        since: Annotated[
            str | None, QueryParameter(name="from", description="Date or time")
        ] = None,
        until: Annotated[str | None, QueryParameter(name="to", description="Date or time")] = None,
        group_by: FromQuery[list[GroupBy] | None] = None,
    ) -> UsageReport:
        """Return usage between two moments (this month so far by default), grouped by model."""
        now = datetime.now(UTC)
        start = _moment("from", since) or now.replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        end = _moment("to", until) or now + timedelta(seconds=1)
        if end <= start:
            raise InvalidRequest("`to` must be later than `from`.")
        groups = group_by or ["model"]
        tenant = _principal(request).tenant
        asked = request.headers.get("x-request-timeout", "").encode()
        try:
            async with asyncio.timeout(time_allowed(asked, documents.document().deadline)):
                lines = await usage.report(tenant, start, end, groups)
        except TimeoutError as error:
            raise DependencyUnavailable(
                "The ledger did not answer in time; try again, or ask for less.", retry_after=1.0
            ) from error
        return UsageReport(since=_shown(start), until=_shown(end), data=lines)


def _principal(request: Request[Any, Any, Any]) -> Principal:
    principal: Principal = request.scope["state"][PRINCIPAL]
    return principal


def _visible(model: ServedModel, document: Document, principal: Principal) -> bool:
    name = model.info.name
    allowed = principal.models is None or name in principal.models
    return allowed and document.models.get(name, _DEFAULT_ENTRY).enabled


def _card(model: ServedModel) -> ModelCard:
    info = model.info
    return ModelCard(
        id=info.name,
        object="model",
        name=info.name,
        tasks=info.tasks,
        revision=info.revision,
        profile=info.profile,
        max_tokens=info.max_tokens,
        labels=info.labels,
        dimensions=info.dimensions,
        description=info.description,
        demonstration=info.demonstration,
        regions=list(model.regions),
    )


def _moment(name: str, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise InvalidRequest(f"`{name}` must be a date or time, as 2026-11-21.") from error
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise InvalidRequest(f"`{name}` must be in the years {_FIRST_YEAR} to {_LAST_YEAR}.")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _shown(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
