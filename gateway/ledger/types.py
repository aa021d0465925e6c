"""What the ledger takes and gives."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from gateway.types import KeyId, RequestEvent, Rule, TenantId


class TenantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant; without `rules` the document's apply."""

    id: TenantId
    name: str
    rules: tuple[Rule, ...]
    created: datetime


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key, never its text nor its hash. `models` of `None` are all models."""

    id: KeyId
    tenant: TenantId
    name: str
    rules: tuple[Rule, ...]
    models: tuple[str, ...] | None
    created: datetime
    expires: datetime | None
    revoked: datetime | None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What billing read of one log: the events `first` to `last`.

    Those that are `lost` have no events; `wrong` are the records that could not be read as one.
    `numbers` are the sequence numbers of the events where some in between are no events.
    """

    log_id: str
    first: int
    last: int
    events: Sequence[RequestEvent] = ()
    wrong: Sequence[bytes] = ()
    lost: bool = False
    numbers: Sequence[int] = ()

    def numbered(self) -> list[tuple[int | None, RequestEvent]]:
        """Return the events, each with its sequence number as far as that is known."""
        numbers: Sequence[int | None] = self.numbers
        if len(numbers) != len(self.events):
            whole = len(self.events) == self.last - self.first + 1
            numbers = range(self.first, self.last + 1) if whole else [None] * len(self.events)
        return list(zip(numbers, self.events, strict=True))


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What became of recorded batches."""

    counted: int
    duplicates: int
    dead: int
    lost: int


class GroupBy(StrEnum):
    """What usage is summed over."""

    TENANT = "tenant"
    DAY = "day"
    MODEL = "model"
    KEY = "key"
    TASK = "task"
    REGION = "region"


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """What was used: requests, items by how they ended, and the work of those computed."""

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


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Usage of a group; the fields it was not grouped by are `None` and left out.

    `cost` is exact, in 10^-9 of `currency`.
    """

    day: str | None = None
    tenant: str | None = None
    key: str | None = None
    model: str | None = None
    task: str | None = None
    region: str | None = None
    units: Units
    cost: int
    currency: str


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Who changed what, when. `detail` holds no secret."""

    number: int
    time: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, object]


class LedgerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the whole ledger: what an operator should know is not zero."""

    events: int
    dead_letters: int
    lost: int
    waiting: int
    """Events beyond a high-water mark, because a block before them is not in yet."""
