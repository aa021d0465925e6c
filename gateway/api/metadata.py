"""Serves the customers' routes of models and usage."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal, Protocol

import msgspec
from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter, SkipValidation

from sluicegate.gateway.api.admission import PRINCIPAL
from sluicegate.gateway.api.openapi_parts import (
    MOMENT,
    TIMEOUT_HEADER,
    Content,
    Kind,
    Operation,
    request_header,
)
from sluicegate.gateway.api.request_headers import parse_timeout
from sluicegate.gateway.api.revalidation import with_etag
from sluicegate.gateway.api.usage_query import parse_group_by, parse_moment
from sluicegate.gateway.errors import (
    DependencyUnavailable,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    RateLimited,
)
from sluicegate.gateway.inference.visibility import is_visible, model_not_found, visible_models
from sluicegate.gateway.ledger.types import SLOW_GROUPS, BudgetReport, GroupBy, Units
from sluicegate.gateway.periods import utc_now
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.types import Principal, RegionName, ServedModel
from sluicegate.wire.protocol import EmbedOutput, Task

AnyRequest = Request[Any, Any, Any]
_GROUPS = tuple(group for group in GroupBy if group.is_public)
_operation = partial(Operation, tag="metadata", kind=Kind.LIMITED)
_GROUP_BY = (
    f"What a line is for: one or more of {', '.join(_GROUPS)}. `model` where it is left out."
    f" {SLOW_GROUPS}"
)
_BUCKET = "Adds lines for each day or hour (UTC) to those of `group_by`."
_OF_COHERE = (Task.CLASSIFY, Task.EMBED, Task.RERANK)
# Times are kept as nanoseconds since 1970 in 64 bits, which end in 2262.
_YEARS = range(1970, 2262)
_ERRORS = (RateLimited, DependencyUnavailable)
_IF_NONE_MATCH = request_header(
    "If-None-Match", "The `ETag` of an answer that is known.", {"type": "string"}, '"5f2c"'
)
_NOT_MODIFIED = Content(media="", summary="What is known has not changed")


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model as a caller sees it; `id` and `object` are what OpenAI's clients look for."""

    id: str
    """The same as `name`."""
    object: Literal["model"]
    """For clients of other APIs that look for it."""
    created: int
    """For clients of other APIs that look for it; always 0."""
    owned_by: str
    """For clients of other APIs that look for it."""
    name: str
    """What requests name it by."""
    tasks: list[Task]
    """What can be asked of it, and so on which routes."""
    revision: str
    """The digest of the files that shape its answers."""
    profile: str
    """The numeric precision it runs with, such as `fp32`."""
    max_tokens: int
    """Tokens that it reads of a text."""
    labels: list[str] | None = None
    """What a classifier may answer."""
    dimensions: int | None = None
    """Numbers of a vector, where it makes some."""
    prompts: tuple[str, ...] = ()
    """Names of the prompts that `prompt_name` of `POST /v1/embed` can have."""
    outputs: tuple[EmbedOutput, ...] | None = None
    """What it makes of a text, where that is more or other than one dense vector."""
    description: str = ""
    """What its owner says of it."""
    demonstration: bool = False
    """Whether it is there to try things out only."""
    regions: list[RegionName]
    """Where backends serve it."""


class ModelEndpoints(msgspec.Struct, frozen=True, kw_only=True):
    """A model as Cohere's clients list it."""

    name: str
    """What requests name it by."""
    endpoints: list[str]
    """The tasks that Cohere's clients know."""
    context_length: int
    """Tokens that it reads of a text."""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The models a key may use."""

    object: Literal["list"] = "list"
    """For clients of other APIs that look for it."""
    data: list[ModelCard]
    """The models, by name."""
    models: list[ModelEndpoints]
    """The same, for Cohere's clients."""


class UsageLine(Units, frozen=True, kw_only=True):
    """Usage of one group; `cost` is a decimal number, exact, as on invoices."""

    group: dict[str, str]
    """What the line is for: a value for each of `group_by`."""
    cost: str
    """In `currency`: a decimal number."""
    currency: str
    """A code of ISO 4217."""


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's usage from `since` (included) to `until` (not included), RFC 3339 in UTC."""

    since: str
    """The moment it begins with."""
    until: str
    """The moment it ends before."""
    data: list[UsageLine]
    """A line for each group."""
    budget: BudgetReport | msgspec.UnsetType = msgspec.UNSET
    """The tenant's budget, where it has one, and the key may use all models."""


class ModelCatalog(Protocol):
    """Lists the models that backends serve."""

    def model(self, name: str) -> ServedModel | None:
        """Return the model of that name."""
        ...

    def models(self) -> Sequence[ServedModel]:
        """Return every model."""
        ...


class UsageSource(Protocol):
    """Reads usage from the ledger."""

    async def report(
        self, caller: Principal, since: datetime, until: datetime, group_by: Sequence[str]
    ) -> list[UsageLine]:
        """Return the usage of the caller's tenant, a line per group.

        Of a key that is limited to models it is the usage of those.

        Raises:
            DependencyUnavailable: the ledger cannot be reached.
        """
        ...

    async def budget(self, caller: Principal) -> BudgetReport | None:
        """Return the budget of the caller's tenant, `None` for a key that is limited to models.

        Raises:
            DependencyUnavailable: the ledger cannot be reached.
        """
        ...


# Litestar need not check what this process made itself.
Models = NamedDependency[SkipValidation[ModelCatalog]]
Runtimes = NamedDependency[SkipValidation[RuntimeStore]]
UsageOfTenants = NamedDependency[SkipValidation[UsageSource]]


class MetadataController(Controller):
    """Returns models and usage."""

    path = "/v1"

    @get(
        "/models",
        opt={
            "operation": _operation(
                id="list_models",
                summary="The models this key may use",
                errors=_ERRORS,
                answers={200: (Content(summary="The models"),), 304: (_NOT_MODIFIED,)},
                headers=("ETag",),
                parameters=(_IF_NONE_MATCH,),
            )
        },
    )
    async def list_models(
        self, request: AnyRequest, models: Models, runtimes: Runtimes
    ) -> Response[ModelList]:
        """Return every model that is served and that the key may use."""
        document = runtimes.current.document
        cards = [
            _card(model)
            for model in models.models()
            if is_visible(model, document, principal_of(request))
        ]
        return with_etag(
            request, ModelList(data=cards, models=[_endpoints(card) for card in cards])
        )

    @get(
        "/models/{model:str}",
        opt={
            "operation": _operation(
                id="get_model",
                summary="One model",
                errors=(*_ERRORS, ModelNotFound, NotFound),
                answers={200: (Content(summary="The model"),), 304: (_NOT_MODIFIED,)},
                headers=("ETag",),
                parameters=(_IF_NONE_MATCH,),
                about={"model": {"description": "The name of a model.", "example": "sentiment"}},
            )
        },
    )
    async def get_model(
        self, model: FromPath[str], request: AnyRequest, models: Models, runtimes: Runtimes
    ) -> Response[ModelCard]:
        """Return one model, 404 when there is none of that name."""
        visible = visible_models(models.models(), runtimes.current.document, principal_of(request))
        found = next((one for one in visible if one.info.name == model), None)
        if found is None:
            raise model_not_found(model, visible)
        return with_etag(request, _card(found))

    @get(
        "/usage",
        opt={
            "operation": _operation(
                id="get_usage",
                summary="The calling tenant's usage and cost",
                errors=_ERRORS,
                parameters=(TIMEOUT_HEADER,),
                about={
                    "from": MOMENT,
                    "to": MOMENT | {"example": "2026-12-01T00:00:00Z"},
                    "group_by": {"description": _GROUP_BY, "example": ["model", "day"]},
                    "bucket": {"description": _BUCKET, "example": "hour"},
                },
            )
        },
    )
    async def get_usage(
        self,
        request: AnyRequest,
        usage: UsageOfTenants,
        runtimes: Runtimes,
        since: Annotated[
            str | None, QueryParameter(name="from", description="Date or time")
        ] = None,
        until: Annotated[str | None, QueryParameter(name="to", description="Date or time")] = None,
        group_by: FromQuery[list[str] | None] = None,
        bucket: FromQuery[Literal["day", "hour"] | None] = None,
    ) -> UsageReport:
        """Return usage between two moments (this month so far by default), grouped by model.

        Of a key that is limited to models it is the usage of those.
        """
        now = utc_now()
        start = parse_moment("from", since, years=_YEARS) or now.replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        end = parse_moment("to", until, years=_YEARS) or now + timedelta(seconds=1)
        if end <= start:
            raise InvalidRequest("`to` must be later than `from`.")
        groups = parse_group_by(group_by, _GROUPS, default="model")
        if bucket is not None and bucket not in groups:
            groups = [bucket, *groups]
        value = request.headers.get("x-request-timeout")
        header = None if value is None else value.encode()
        try:
            async with asyncio.timeout(parse_timeout(header, runtimes.current.document.deadline)):
                lines = await usage.report(principal_of(request), start, end, groups)
                budget = await usage.budget(principal_of(request))
        except TimeoutError as error:
            raise DependencyUnavailable(
                "The ledger did not answer in time; try again, or ask for less.", retry_after=1.0
            ) from error
        return UsageReport(
            since=_shown(start), until=_shown(end), data=lines, budget=budget or msgspec.UNSET
        )


def principal_of(request: AnyRequest) -> Principal:
    """Return the caller of a request that was admitted."""
    principal: Principal = request.scope["state"][PRINCIPAL]
    return principal


def _card(model: ServedModel) -> ModelCard:
    info = model.info
    return ModelCard(
        id=info.name,
        object="model",
        created=0,
        owned_by="sluicegate",
        name=info.name,
        tasks=info.tasks,
        revision=info.revision,
        profile=info.profile,
        max_tokens=info.max_tokens,
        labels=info.labels,
        dimensions=info.dimensions,
        prompts=info.prompts,
        outputs=info.outputs or None,
        description=info.description,
        demonstration=info.demonstration,
        regions=list(model.regions),
    )


def _endpoints(card: ModelCard) -> ModelEndpoints:
    endpoints = [task.value for task in card.tasks if task in _OF_COHERE]
    return ModelEndpoints(name=card.name, endpoints=endpoints, context_length=card.max_tokens)


def _shown(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
