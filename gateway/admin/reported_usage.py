"""Serves the operators' route that takes usage of work done outside of gateways."""

import asyncio
import time
from typing import Annotated, Final

import msgspec
from litestar import Controller, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from backends.protocol import Task
from gateway.admin.operators import Operator, Role
from gateway.api.openapi_parts import Content, Operation
from gateway.errors import DependencyUnavailable, InvalidRequest, NotFound
from gateway.ledger.ledger import Ledger
from gateway.ledger.recording import UnrecordableBatch
from gateway.ledger.types import Batch
from gateway.types import KeyId, RequestEvent, RequestId, TenantId, Usage

# Sums of all kinds of items are within what the ledger counts.
_MOST: Final = 2**38
_OK: Final = 200
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
    """Usage of one job, which its `id` names: reports of the same id count once."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
    tenant: Name
    model: Name
    task: Task
    revision: Annotated[str, msgspec.Meta(max_length=200)] = ""
    hit: Count = 0
    """Items answered from a gateway's result cache."""
    collapsed: Count = 0
    """Items equal to one that was computed; priced as hits."""
    computed: Count = 0
    failed: Count = 0
    """Items without an answer, which are not billed."""
    rows: Count = 0
    """Rows that the model ran for the computed items."""
    tokens: Count = 0
    """Tokens of those rows."""


class CountedReport(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger has the usage; `counted` is false where it had it before."""

    counted: bool


class ReportedUsageController(Controller):
    """Takes usage, such as that of bulk jobs."""

    path = "/admin/usage/reports"

    @post(
        "/",
        status_code=_OK,
        opt={"role": Role.BILLING},
        operation=Operation(
            id="report_usage",
            tag="billing",
            summary="Bill a tenant for work that was done outside of the gateway, at batch prices",
            body=(Content(example=_EXAMPLE),),
            errors=(NotFound, InvalidRequest, DependencyUnavailable),
        ),
    )
    async def report(
        self,
        data: JSONBody[ReportedUsage],
        ledger: NamedDependency[Ledger],
        operator: NamedDependency[Operator],
    ) -> CountedReport:
        """Count a job's usage in the ledger, once."""
        counted = await asyncio.to_thread(_record, ledger, data, operator.name)
        return CountedReport(counted=counted)


def _record(ledger: Ledger, data: ReportedUsage, actor: str) -> bool:
    """Record usage as one request of a batch; the only record of a log of its own.

    Raises:
        NotFound: there is no such tenant.
        InvalidRequest: the numbers are no usage.
    """
    ledger.accounts.tenant(data.tenant)
    counts = {"hit": data.hit, "collapsed": data.collapsed, "computed": data.computed}
    detail = {"id": data.id, "model": data.model, **counts, "tokens": data.tokens}
    # First: no change without an entry in the audit log.
    ledger.audit(actor, "usage.report", data.tenant, detail)
    event = RequestEvent(
        id=RequestId(f"job_{data.id}"),
        time=time.time_ns(),
        tenant=TenantId(data.tenant),
        key=KeyId(""),
        model=data.model,
        task=data.task,
        status=_OK,
        usage=Usage(
            items=sum(counts.values()) + data.failed,
            failed=data.failed,
            rows=data.rows,
            tokens=data.tokens,
            **counts,
        ),
        duration=0.0,
        revision=data.revision,
        batch=1,
    )
    try:
        recorded = ledger.recorder.record(
            [Batch(log_id=f"job_{data.id}", first=1, last=1, events=[event])]
        )
    except UnrecordableBatch as error:
        raise InvalidRequest(f"the usage cannot be counted: {error}") from None
    return recorded.counted > 0
