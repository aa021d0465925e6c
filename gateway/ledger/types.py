"""Defines the values that the ledger takes and returns."""

from collections.abc import Collection, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from backends.plans import Serving
from gateway.types import KeyId, RequestEvent, Rule, TenantId


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant means to spend in a month (UTC)."""

    amount: str
    """A decimal number, such as `250.00`."""
    currency: str = ""
    """A code of ISO 4217, that of a price; left out where all prices have the same."""
    thresholds: tuple[int, ...] = (80, 100)
    """Percentages of the amount; a webhook tells of each that is reached."""
    refuse: bool = False
    """Whether requests are refused for the rest of the month once the amount is reached."""


class BudgetReport(Budget, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A tenant's budget, and what is left of it this month."""

    month: str
    """The month in UTC, such as `2026-11`."""
    spent: str
    """The cost of the month so far, in `currency`: a decimal number."""
    remaining: str
    """What is left of the amount, 0 where more was spent."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant; without `limits` those of the document apply."""

    id: TenantId
    name: str
    limits: tuple[Rule, ...]
    created: datetime
    budget: Budget | None = None


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key, without its text and hash; `models` of `None` are all models."""

    id: KeyId
    tenant: TenantId
    name: str
    limits: tuple[Rule, ...]
    models: tuple[str, ...] | None
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    origins: tuple[str, ...] | None = None
    """Origins from whose pages alone it may be used."""
    routes: tuple[str, ...] | None = None
    """Paths that it may be used for."""
    former_expires: datetime | None = None
    """Until when the text before the last rotation is valid."""


class KeyBounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits a key to origins and to routes, as those for browsers are; `None` is no bound."""

    origins: tuple[str, ...] | None = None
    routes: tuple[str, ...] | None = None


NO_BOUNDS: Final = KeyBounds()


class KeySpec(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a key to create, by the hash of its text; `models` of `None` are all models."""

    tenant: str
    key_hash: str
    name: str = ""
    models: Collection[str] | None = None
    rules: Collection[Rule] = ()
    expires: datetime | None = None
    bounds: KeyBounds = NO_BOUNDS


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the records `first` to `last` of one log.

    A `lost` batch has no events; `wrong` are records that are not events. `numbers` are the
    sequence numbers of the events, if these are not consecutive.
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
    """Counts the records of batches by outcome."""

    counted: int
    duplicates: int
    dead: int
    lost: int


class GroupBy(StrEnum):
    """Names the fields by which usage is grouped."""

    TENANT = "tenant"
    DAY = "day"
    HOUR = "hour"
    MODEL = "model"
    KEY = "key"
    TASK = "task"
    REGION = "region"


class Units(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Counts requests, items by their outcome, and the work of computed items."""

    requests: int = 0
    items: int = 0
    hit: int = 0
    collapsed: int = 0
    computed: int = 0
    failed: int = 0
    rows: int = 0
    tokens: int = 0

    def __add__(self, other: "Units") -> "Units":
        return Units(
            requests=self.requests + other.requests,
            items=self.items + other.items,
            hit=self.hit + other.hit,
            collapsed=self.collapsed + other.collapsed,
            computed=self.computed + other.computed,
            failed=self.failed + other.failed,
            rows=self.rows + other.rows,
            tokens=self.tokens + other.tokens,
        )


class GroupUsage(Units, frozen=True, kw_only=True, gc=False):
    """Usage of one group; it has a field for each thing that it was grouped by."""

    day: str | msgspec.UnsetType = msgspec.UNSET
    hour: str | msgspec.UnsetType = msgspec.UNSET
    tenant: str | msgspec.UnsetType = msgspec.UNSET
    key: str | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType = msgspec.UNSET
    task: str | msgspec.UnsetType = msgspec.UNSET
    region: str | msgspec.UnsetType = msgspec.UNSET
    cost: str
    """A decimal number, in `currency`; exact."""
    currency: str


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what is recorded of a request; `usage` is unknown of those in a row of several."""

    id: str
    time: datetime
    key: str
    model: str
    task: str
    status: int
    code: str
    region: str
    revision: str
    usage: Units | None


class ArmCost(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the items that one revision of a model answered, and what they cost."""

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
    """Holds how a model is served by the operators' word, and how before.

    `None` is what its folder says. `version` grows with each change of any model.
    """

    version: int = 0
    plan: Serving | None = None
    previous: Serving | None = None


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Records who changed what, and when. `detail` holds no secret."""

    number: int
    time: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, object]
