"""What a dry run says of a document, of limits and of budgets; and that it changes nothing."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.store import to_nanoseconds
from sluicegate.gateway.periods import utc_now
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.types import Rule, Usage
from tests.support.admin import AUTHORIZATION, client_of, refused
from tests.support.events import make_event
from tests.support.ledgers import record

pytestmark = pytest.mark.anyio

BEFORE: dict[str, Any] = {
    "models": {"m": {"cache_ttl": 1}},
    "prices": [{"model": "m", "hit": 1}, {"hit": 1}],
}
RULE = Rule(name="own", unit="requests", capacity=10, window=60.0)


async def dry_run(admin: httpx.AsyncClient, document: dict[str, Any]) -> dict[str, Any]:
    answer = await admin.put("/admin/config", params={"dry_run": True}, json=document)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["difference"]
    return found


@pytest.fixture
async def published(admin: httpx.AsyncClient, ledger: Ledger) -> None:
    """A document, tenants with and without limits of their own, and usage of two models."""
    assert (await admin.put("/admin/config", json=BEFORE)).status_code in (200, 202)
    ledger.accounts.create_tenant("plain")
    ledger.accounts.create_tenant("limited", rules=[RULE])
    ledger.accounts.create_tenant("keyed", rules=[RULE])
    ledger.accounts.create_key("keyed", key_hash="h1")
    time = to_nanoseconds(utc_now())
    events = [
        make_event(1, time=time, tenant="plain", model="m", usage=Usage.of(hit=1)),
        make_event(2, time=time, tenant="limited", model="other", usage=Usage.of(hit=1)),
    ]
    record(ledger, "w0-1", 2, events)


async def test_fields_models_limits_prices_and_tenants_are_shown(
    admin: httpx.AsyncClient, published: None
) -> None:
    limits = [{"name": "minute", "unit": "requests", "capacity": 1, "window": 60}]
    after = BEFORE | {
        "models": {"m": {"cache_ttl": 2}, "n": {"planned": True}},
        "limits": {"tenant": limits},
        "prices": [*BEFORE["prices"], {"model": "m", "since": "2099-01-01", "hit": 2}],
    }

    found = await dry_run(admin, after)

    assert {"path": "models.m.cache_ttl", "from": 1.0, "to": 2.0} in found["changes"]
    assert found["changes"][-1]["path"] == "prices[m 2099-01-01]"
    assert found["models"] == {"added": ["n"], "removed": [], "changed": ["m"]}
    assert "limits.tenant[minute].capacity" in found["limits"]
    assert found["prices"] == ["m"]
    assert found["tenants_by_limits"] == {"count": 1, "first": ["plain"]}
    assert found["tenants_by_prices"] == {"count": 1, "first": ["plain"]}


async def test_limits_of_keys_touch_tenants_with_keys_that_have_none(
    admin: httpx.AsyncClient, published: None
) -> None:
    limits = [{"name": "minute", "unit": "requests", "capacity": 1, "window": 60}]

    found = await dry_run(admin, BEFORE | {"limits": {"key": limits}})

    assert found["limits"] == ["limits.key[minute]"]
    assert found["tenants_by_limits"] == {"count": 1, "first": ["keyed"]}


async def test_a_price_of_all_models_touches_those_without_one_of_their_own(
    admin: httpx.AsyncClient, published: None
) -> None:
    later = {"since": "2099-01-01", "hit": 5}

    found = await dry_run(admin, BEFORE | {"prices": [*BEFORE["prices"], later]})

    assert found["prices"] == ["*"]
    assert found["tenants_by_prices"] == {"count": 1, "first": ["limited"]}


async def test_a_dry_run_changes_nothing(
    admin: httpx.AsyncClient, published: None, ledger: Ledger
) -> None:
    before, audit = await admin.get("/admin/config"), ledger.audit.entries()

    same = await dry_run(admin, BEFORE)
    await dry_run(admin, {"models": {"m": {}}} | {"prices": BEFORE["prices"]})
    after = await admin.get("/admin/config")

    assert same["changes"] == []
    assert same["tenants_by_limits"] == same["tenants_by_prices"] == {"count": 0, "first": []}
    assert after.json() == before.json()
    assert ledger.audit.entries() == audit


async def test_many_tenants_are_counted_and_some_named(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    await admin.put("/admin/config", json=BEFORE)
    for number in range(25):
        ledger.accounts.create_tenant(f"t{number:02}")
    found = await dry_run(admin, BEFORE | {"limits": {"tenant": []}})

    assert found["tenants_by_limits"]["count"] == 25
    assert found["tenants_by_limits"]["first"] == [f"t{number:02}" for number in range(20)]


async def test_without_the_ledger_tenants_are_not_counted(
    admin: httpx.AsyncClient, settings: Settings, redis: Any, tmp_path: Path
) -> None:
    await admin.put("/admin/config", json=BEFORE)
    (tmp_path / "no-folder").write_text("")
    with Ledger(f"sqlite:///{tmp_path / 'no-folder' / 'ledger.db'}") as away:
        async with client_of(settings, redis, away) as client:
            found = await dry_run(client, BEFORE | {"limits": {"tenant": []}})

    assert found["limits"] == ["limits.tenant[minute]", "limits.tenant[items]"]
    assert found["tenants_by_limits"] is None
    assert found["tenants_by_prices"] == {"count": 0, "first": []}, "no price changes"


async def test_limits_and_budgets_of_a_tenant_are_compared(
    admin: httpx.AsyncClient, published: None, ledger: Ledger
) -> None:
    before = ledger.accounts.tenants()
    rule = msgspec.to_builtins(RULE) | {"capacity": 20}
    dry = {"dry_run": "true"}

    limits = await admin.put("/admin/tenants/limited/limits", params=dry, json=[rule])
    wrong = await admin.put(
        "/admin/tenants/limited/limits", params=dry, json=[rule | {"unit": "horses"}]
    )
    nobody = await admin.put("/admin/tenants/nobody/limits", params=dry, json=[rule])
    budget = await admin.put("/admin/tenants/plain/budget", params=dry, json={"amount": "2.50"})

    change = {"path": "limits[own].capacity", "from": 10, "to": 20}
    assert limits.json() == {"valid": True, "changes": [change]}
    refused(wrong, 400, "invalid_request")
    refused(nobody, 404, "not_found")
    (shown,) = budget.json()["changes"]
    assert (shown["path"], shown["to"]["amount"]) == ("budget", "2.50")
    assert ledger.accounts.tenants() == before


@pytest.mark.parametrize("document", [{"models": {"m": {"cache_ttl": -1}}}, {}])
async def test_a_document_that_would_be_refused_has_no_difference(
    admin: httpx.AsyncClient, published: None, document: dict[str, Any]
) -> None:
    answer = await admin.put(
        "/admin/config", params={"dry_run": True}, json=document, headers=AUTHORIZATION
    )

    refused(answer, 422, "invalid_configuration")
