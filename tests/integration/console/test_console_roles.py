"""What a role may not do is not shown, and refused when it is asked for."""

import re

import httpx
import pytest

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.operators import Role
from tests.support.admin import AUTHORIZATION
from tests.support.console import log_in

pytestmark = pytest.mark.anyio
_PAGES = ("guards", "tenants", "tenants/acme", "usage", "configuration", "dead-letters", "audit")
_OF_OPERATORS = (
    *("tenants", "tenants/acme/limits", "tenants/acme/keys"),
    *("configuration/dry-run", "configuration/publish", "configuration/rollback"),
    *("playground/key", "playground/run"),
)
_OF_BILLING = ("tenants/acme/budget", "dead-letters/1/replay", "dead-letters/1/discard")


async def log_in_as(browser: httpx.AsyncClient, role: Role) -> None:
    """Log in as an operator with one role."""
    created = await browser.post(
        "/admin/operators", json={"name": role, "roles": [role]}, headers=AUTHORIZATION
    )
    assert (await log_in(browser, created.json()["key"])).status_code == 303


@pytest.fixture
def acme(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme")
    ledger.accounts.create_key("acme", key_hash="h1")
    ledger.recorder.add_dead_letter("", "the entry's fields are wrong", b"unreadable")


async def test_who_may_read_metrics_only_does_not_log_in(browser: httpx.AsyncClient) -> None:
    created = await browser.post(
        "/admin/operators", json={"name": "prom", "roles": ["metrics"]}, headers=AUTHORIZATION
    )

    refused = await log_in(browser, created.json()["key"])

    assert refused.status_code == 403
    assert "<code>prom</code>" in refused.text
    assert "sluicegate_console" not in refused.cookies


@pytest.mark.usefixtures("acme")
async def test_a_viewer_reads_everything_and_changes_nothing(browser: httpx.AsyncClient) -> None:
    await log_in_as(browser, Role.VIEWER)

    pages = [await browser.get(f"/console/{path}") for path in _PAGES]
    changes = [await browser.post(f"/console/{path}") for path in (*_OF_OPERATORS, *_OF_BILLING)]
    playground = await browser.get("/console/playground")

    assert {page.status_code for page in pages} == {200}
    shown = [re.findall(r'hx-post="([^"]+)"', page.text) for page in pages]
    assert shown == [[]] * len(pages)
    assert "/console/playground" not in pages[0].text
    assert {answer.status_code for answer in (*changes, playground)} == {403}


@pytest.mark.usefixtures("acme")
async def test_billing_sets_budgets_and_replays_dead_letters_alone(
    browser: httpx.AsyncClient,
) -> None:
    await log_in_as(browser, Role.BILLING)

    tenant = (await browser.get("/console/tenants/acme")).text
    letters = (await browser.get("/console/dead-letters")).text
    changes = [await browser.post(f"/console/{path}") for path in _OF_OPERATORS]
    discarded = await browser.post("/console/dead-letters/1/discard")

    assert re.findall(r'hx-post="([^"]+)"', tenant) == ["/console/tenants/acme/budget"]
    assert "/console/dead-letters/1/replay" in letters
    assert {answer.status_code for answer in changes} == {403}
    assert discarded.status_code == 200


@pytest.mark.usefixtures("acme")
async def test_an_operator_sets_limits_and_publishes_no_prices(browser: httpx.AsyncClient) -> None:
    await log_in_as(browser, Role.OPERATOR)
    document = {"text": "prices: [{}, {since: 2999-01-01, hit: 7}]\n"}

    tenant = (await browser.get("/console/tenants/acme")).text
    checked = await browser.post("/console/configuration/dry-run", data=document)
    published = await browser.post("/console/configuration/publish", data=document)
    refused = [await browser.post(f"/console/{path}") for path in _OF_BILLING]

    assert "/console/tenants/acme/limits" in tenant
    assert "/console/tenants/acme/budget" not in tenant
    assert {answer.status_code for answer in (checked, published, *refused)} == {403}
