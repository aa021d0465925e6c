"""Defines the values that the ledger takes and returns."""

from collections.abc import Collection, Sequence
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final

import msgspec

from sluicegate.gateway.config.checks import rule_findings
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.ledger.usage_fields import FIELDS, SUMMED
from sluicegate.gateway.types import KeyId, RequestEvent, RequestUsage, Rule, TenantId
from sluicegate.wire.plans import Serving


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The amount of money that a tenant plans to spend, or may spend at most, in a month (UTC)."""

    amount: str
    """A decimal number, such as `250.00`."""
    currency: str = ""
    """An ISO 4217 code. At least one price must have this currency. Optional if all prices have the
    same currency."""
    thresholds: tuple[int, ...] = (80, 100)
    """Percentages of the amount. A webhook reports each threshold that is reached."""
    refuse: bool = False
    """Whether requests are refused for the rest of the month once the amount is reached."""


class BudgetReport(Budget, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A tenant's budget, and what is left of it this month."""

    month: str
    """The month in UTC, such as `2026-11`."""
    spent: str
    """The cost of the month so far in `currency`, as a decimal number."""
    remaining: str
    """The rest of the amount, or 0 if more was spent."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant. If `limits` is empty, the configuration document's limits apply."""

    id: TenantId
    name: str
    limits: tuple[Rule, ...]
    created: datetime
    budget: Budget | None = None


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret. If `models` is `None`, the key allows all models."""

    id: KeyId
    tenant: TenantId
    name: str
    limits: tuple[Rule, ...]
    models: tuple[str, ...] | None
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    origins: tuple[str, ...] | None = None
    """Origins of the web pages that may use the key. `null` allows all origins."""
    routes: tuple[str, ...] | None = None
    """Paths of the API that the key may be used for. `null` allows all paths."""
    former_expires: datetime | None = None
    """The time until which the former secret, replaced by the last rotation, is valid."""


class KeyBounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits a key, such as a key for browsers, to web origins and API routes.

    If `origins` or `routes` is `None`, this field does not limit the key.
    """

    origins: tuple[str, ...] | None = None
    routes: tuple[str, ...] | None = None


NO_BOUNDS: Final = KeyBounds()


class KeySpec(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a key to create, with its secret's hash.

    If `models` is `None`, the key allows all models.
    """

    tenant: str
    key_hash: str
    name: str = ""
    models: Collection[str] | None = None
    rules: Collection[Rule] = ()
    expires: datetime | None = None
    bounds: KeyBounds = NO_BOUNDS


class EventBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the events that were decoded from the records `first` to `last` of one event log.

    `numbers` holds the events' sequence numbers. It is empty if the sequence numbers are
    consecutive and begin with `first`. `wrong` holds the bytes of records that are not valid
    events. `lost` says that a crash destroyed the records.
    """

    log_id: str
    first: int
    last: int
    events: Sequence[RequestEvent] = ()
    wrong: Sequence[bytes] = ()
    lost: bool = False
    numbers: Sequence[int] = ()

    def numbered(self) -> list[tuple[int, RequestEvent]]:
        """Return the events with their sequence numbers."""
        numbers = self.numbers or range(self.first, self.first + len(self.events))
        return list(zip(numbers, self.events, strict=True))


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """Says how many requests were newly recorded (`counted`) or already recorded (`duplicates`).

    `dead` is the number of records that cannot be recorded, and were stored as new dead letters.
    `lost` is the number of events that a crash destroyed.
    """

    counted: int
    duplicates: int
    dead: int
    lost: int


class GroupBy(StrEnum):
    """Names the fields by which usage can be grouped.

    Each is a field of usage events with a column in the ledger, or a time.
    """

    DAY = "day"
    HOUR = "hour"
    TENANT = "tenant"
    KEY = "key"
    MODEL = "model"
    TASK = "task"
    REGION = "region"
    BACKEND_REGION = "backend_region"

    @property
    def is_public(self) -> bool:
        """Whether tenants may group their own usage by it."""
        field = FIELDS.get(self.value)
        return field is None or field.is_public

    @property
    def is_summed(self) -> bool:
        """Whether the ledger keeps sums by it. Otherwise, a query reads single events.

        A year of events takes seconds to read.
        """
        return self in (GroupBy.TENANT, GroupBy.HOUR, GroupBy.DAY, GroupBy.MODEL)


SLOW_GROUPS: Final = (
    "Ask for at most 31 days at once by "
    + ", ".join(f"`{group}`" for group in GroupBy if not group.is_summed)
    + ", because these queries read single requests."
)
"""Describes a parameter of such queries."""


class Units(RequestUsage, frozen=True, kw_only=True, gc=False):
    """What several requests used together."""

    # The units of an event have no defaults: an incomplete event is a dead letter. Sums have them.
    items: int = 0
    hit: int = 0
    collapsed: int = 0
    computed: int = 0
    failed: int = 0
    rows: int = 0
    tokens: int = 0
    requests: int = 0
    """Answered requests, errors included."""

    def __add__(self, other: "Units") -> "Units":
        return Units(**{name: getattr(self, name) + getattr(other, name) for name in SUMMED})


class GroupUsage(Units, frozen=True, kw_only=True, gc=False):
    """The usage of one group.

    A field such as `day` or `tenant` is set only if the query groups usage by this field.
    """

    described_by: ClassVar = RequestEvent
    day: str | msgspec.UnsetType = msgspec.UNSET
    hour: str | msgspec.UnsetType = msgspec.UNSET
    tenant: str | msgspec.UnsetType = msgspec.UNSET
    key: str | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType = msgspec.UNSET
    task: str | msgspec.UnsetType = msgspec.UNSET
    region: str | msgspec.UnsetType = msgspec.UNSET
    backend_region: str | msgspec.UnsetType = msgspec.UNSET
    cost: str
    """The exact cost in `currency`, as a decimal number."""
    currency: str


class UnitPrices(msgspec.Struct, frozen=True, kw_only=True):
    """The price of one unit, for each kind of unit, as a decimal string."""

    hit: str
    computed: str
    row: str
    token: str


class InvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one model under one price."""

    model: str
    price: str
    """The model that the price is for, and the date from which it applies: `model@since`."""
    currency: str
    unit_prices: UnitPrices
    units: Units
    exact: str
    """The cost of the units before rounding, as a decimal string."""
    amount: str
    """`exact`, rounded to the smallest unit of the currency; halves are rounded to even."""


class InvoiceTotal(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of the rounded amounts of all lines in one currency."""

    currency: str
    amount: str


class Invoice(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's invoice for a month in UTC.

    The same events and prices always give the same invoice.
    """

    tenant: str
    month: str
    lines: list[InvoiceLine]
    totals: list[InvoiceTotal]


class PastRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was answered."""

    described_by: ClassVar = RequestEvent
    id: str
    """The `X-Request-Id` of its response."""
    time: datetime
    """When it was answered; of several that were recorded together, when the first was."""
    key: str
    model: str
    task: str
    status: int
    code: str
    region: str
    backend_region: str
    revision: str
    client_id: str
    usage: RequestUsage | None
    """What it used; nothing where requests were recorded together, of which only sums are kept."""


class RevisionCost(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the number and the cost of the items that one revision of a model answered.

    `arm` is the number of the revision.
    """

    arm: str
    hit: int
    collapsed: int
    computed: int
    failed: int
    rows: int
    tokens: int
    cost: str
    currency: str


class StoredPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the operators' present plan for a model, and the previous one.

    Without a plan (`None`), the model's folder decides how the model is served. `version` grows
    with every change of any model's plan.
    """

    version: int = 0
    plan: Serving | None = None
    previous: Serving | None = None


class TenantCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of affected tenants, and the ids of the first ones."""

    count: int
    first: list[str]
    """The ids of the first tenants, in order."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Records who changed what, and when. `detail` holds no secret."""

    number: int
    time: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, object]


class AuditNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names the operators and the kinds of changes by which entries can be filtered."""

    actors: Sequence[str]
    kinds: Sequence[str]


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects audit entries. An entry must match every field. An empty field matches any entry."""

    actor: str = ""
    kind: str = ""
    """An action such as `key.revoke`, or a prefix such as `key` for all actions on keys."""
    subject: str = ""
    since: datetime | None = None
    until: datetime | None = None


class RegionLease(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a live gateway region."""

    name: str
    workers: int
    expires_in: float
    """Seconds until the leases of all its workers have expired, unless they are renewed."""


class RegionShare(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a region's share of a bucket to operators.

    `share` is the fraction of the limit that the region applies. `held` is the fraction that the
    other regions must leave to the region. `demand` is in units per second.
    """

    bucket: str
    region: str
    share: float
    held: float
    demand: float


class OperatorAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an operator and the operator's key, without the key's secret."""

    name: str
    roles: tuple[str, ...]
    created: datetime
    expires: datetime | None
    """When the key expires. `null` means never."""
    revoked: datetime | None
    former_expires: datetime | None = None
    """The time until which the former secret, replaced by the last rotation, is valid."""


def check_rules(rules: Collection[Rule]) -> None:
    """Check the limits of a tenant or a key.

    Raises:
        InvalidRequest: a rule is invalid.
    """
    for finding in rule_findings(rules, ()):
        index, field = finding.path
        raise InvalidRequest(f"`limits[{index}].{field}`: {finding.detail}")
