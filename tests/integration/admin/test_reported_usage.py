"""Usage of work that was done outside of gateways is billed once, at the prices of batches."""

from typing import Any

import httpx
import pytest

from sluicegate.gateway.ledger.ledger import Ledger

pytestmark = pytest.mark.anyio

REPORT: dict[str, Any] = {
    "id": "0f3e2d1c9b8a4756",
    "tenant": "acme",
    "model": "sentiment",
    "task": "classify",
    "hit": 10,
    "collapsed": 5,
    "computed": 100,
    "failed": 2,
    "rows": 100,
    "tokens": 2_000,
}


@pytest.fixture
async def acme(admin: httpx.AsyncClient) -> None:
    (await admin.post("/admin/tenants", json={"id": "acme"})).raise_for_status()


@pytest.mark.usefixtures("acme")
async def test_a_job_counts_once_however_often_it_is_reported(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    first, second = [await admin.post("/admin/usage/reports", json=REPORT) for _ in range(2)]
    other = await admin.post(
        "/admin/usage/reports", json=REPORT | {"id": "another-job", "computed": 1}
    )

    assert [answer.json() for answer in (first, second, other)] == [
        *({"counted": True}, {"counted": False}, {"counted": True})
    ]
    (row,) = (await admin.get("/admin/usage", params={"tenant": "acme"})).json()["rows"]
    assert (row["computed"], row["hit"], row["tokens"]) == (101, 20, 4_000)
    assert ledger.audit.entries(limit=1)[0].action == "usage.report"


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"tenant": "nobody"}, 404),
        ({"id": "a b"}, 400),
        ({"computed": -1}, 400),
        ({"computed": 2**50}, 400),
        ({"task": "guess"}, 400),
        ({"price": 3}, 400),
    ],
)
async def test_what_is_no_usage_is_refused(
    admin: httpx.AsyncClient, change: dict[str, Any], status: int
) -> None:
    answer = await admin.post("/admin/usage/reports", json=REPORT | change)

    assert answer.status_code == status
    assert (await admin.get("/admin/usage", params={"tenant": "acme"})).json()["rows"] == []
