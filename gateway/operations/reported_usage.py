"""Records the usage of jobs that ran without a gateway, such as bulk jobs."""

import asyncio
import time
from typing import Annotated, ClassVar, Final

import msgspec

from sluicegate.gateway.errors import InvalidRequest, NotFound
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.recording import UnrecordableBlock
from sluicegate.gateway.ledger.types import EventBlock
from sluicegate.gateway.ledger.usage_fields import OUTCOMES
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import Family
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.types import (
    KeyId,
    RequestEvent,
    RequestId,
    RequestUsage,
    TenantId,
    Usage,
)
from sluicegate.wire.protocol import Task

# This limit is so low that the ledger's columns can hold the sums of many reports.
_MOST: Final = 2**38
_OK: Final = 200
FAMILY = Family("billing")
Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_EXAMPLE = {
    "id": "0f3e2d1c9b8a47568e6f1a2b3c4d5e6f",
    "tenant": "acme",
    "model": "sentiment",
    "task": "classify",
    "computed": 900_000,
    "collapsed": 100_000,
    "rows": 900_000,
    "tokens": 21_000_000,
}


class ReportedUsage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The usage of one job. Several reports with the same `id` are counted once."""

    described_by: ClassVar = RequestUsage
    id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
    tenant: Name
    model: Name
    task: Task
    revision: Annotated[str, msgspec.Meta(max_length=200)] = ""
    hit: Count = 0
    collapsed: Count = 0
    """Items that are equal to a computed item. They cost as much as items in `hit`."""
    computed: Count = 0
    failed: Count = 0
    rows: Count = 0
    tokens: Count = 0


class CountedReport(msgspec.Struct, frozen=True, kw_only=True):
    """Confirms that the ledger has the usage.

    `counted` is false if the usage was recorded before.
    """

    counted: bool


@FAMILY.operation(
    "POST /admin/usage/reports",
    "Bill a tenant for a job that ran without a gateway, at batch prices",
    role=Role.BILLING,
    errors=(NotFound,),
    example=_EXAMPLE,
)
async def report_usage(context: OperationContext, usage: ReportedUsage) -> CountedReport:
    """Record the usage of a job. A repeated report is not counted again."""
    counted = await asyncio.to_thread(_record, context.ledger, usage, context.operator.name)
    return CountedReport(counted=counted)


def _record(ledger: Ledger, data: ReportedUsage, actor: str) -> bool:
    """Record usage as one event of a batch job, in an event log that contains only this event.

    Raises:
        NotFound: the tenant does not exist.
        InvalidRequest: the ledger cannot record the numbers.
    """
    ledger.accounts.tenant(data.tenant)
    counts = {name: getattr(data, name) for name in OUTCOMES}
    detail = {"id": data.id, "model": data.model, **counts}
    # The audit entry comes first, so that there is no change without an entry.
    ledger.audit(actor, "usage.report", data.tenant, detail)
    event = RequestEvent(
        id=RequestId(f"job_{data.id}"),
        time=time.time_ns(),
        tenant=TenantId(data.tenant),
        key=KeyId(""),
        model=data.model,
        task=data.task,
        status=_OK,
        usage=Usage.of(**counts),
        duration=0.0,
        revision=data.revision,
        batch=1,
    )
    try:
        recorded = ledger.recorder.record(
            [EventBlock(log_id=f"job_{data.id}", first=1, last=1, events=[event])]
        )
    except UnrecordableBlock as error:
        raise InvalidRequest(f"the usage cannot be counted: {error}") from None
    return recorded.counted > 0
