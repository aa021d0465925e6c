"""The console's pages of tenants, keys and changes: what they show, do and write to the audit."""

import re

import httpx
import pytest

from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import KeySpec
from sluicegate.gateway.types import Rule

pytestmark = pytest.mark.anyio
_RULES = {
    "rule_name": ["minute", ""],
    "rule_unit": ["requests", "requests"],
    "rule_capacity": ["600", ""],
    "rule_window": ["60", ""],
    "rule_period": ["", ""],
    "rule_model": ["", ""],
    "rule_shadow": ["no", "no"],
}


async def test_tenants_are_searched_page_by_page(
    operator: httpx.AsyncClient, ledger: Ledger
) -> None:
    specs = [KeySpec(tenant=f"t{number:02}", key_hash=f"h{number}") for number in range(51)]
    ledger.accounts.create_keys(specs, new_tenants=True)

    first = (await operator.get("/console/tenants")).text
    second = (await operator.get("/console/tenants?page=2")).text
    found = (await operator.get("/console/tenants?search=T07")).text

    assert "51 tenants" in first
    assert "Page 1 of 2" in first
    assert ("/tenants/t49" in first, "/tenants/t50" in first) == (True, False)
    assert "/tenants/t50" in second
    assert re.findall(r'href="/console/tenants/(\w+)"', found) == ["t07"]


async def test_a_tenant_is_created_limited_and_given_a_budget(
    operator: httpx.AsyncClient, ledger: Ledger
) -> None:
    created = await operator.post("/console/tenants", data={"id": "acme", "name": "Acme <b>"})
    limited = await operator.post("/console/tenants/acme/limits", data=_RULES)
    wrong = await operator.post(
        "/console/tenants/acme/limits",
        data=_RULES | {"rule_capacity": ["many", ""]},
        headers={"hx-request": "true"},
    )
    budget = await operator.post(
        "/console/tenants/acme/budget",
        data={"amount": "5", "currency": "", "thresholds": "50 100", "refuse": "yes"},
    )
    page = (await operator.get("/console/tenants/acme")).text
    removed = await operator.post("/console/tenants/acme/budget", data={"amount": ""})

    assert created.headers["hx-redirect"] == "/console/tenants/acme"
    assert created.content == b""
    assert "Acme &lt;b&gt;" in page
    assert 'value="600"' in limited.text
    assert wrong.status_code == 400
    assert "<code>many</code>" in wrong.text
    assert "The budget is replaced." in budget.text
    assert 'value="50, 100"' in page
    assert "The budget is removed." in removed.text
    tenant = ledger.accounts.tenant("acme")
    assert tenant.limits == (Rule(name="minute", unit="requests", capacity=600, window=60.0),)
    actions = [entry.action for entry in ledger.audit.entries(limit=4)]
    assert actions == ["tenant.budget", "tenant.budget", "tenant.limits", "tenant.create"]


async def test_a_key_is_created_rotated_bounded_and_revoked(
    operator: httpx.AsyncClient, ledger: Ledger
) -> None:
    ledger.accounts.create_tenant("acme")
    base = "/console/tenants/acme/keys"

    made = await operator.post(base, data={"name": "website", "routes": "/v1/embed"})
    (key,) = ledger.accounts.keys("acme")
    rotated = await operator.post(f"{base}/{key.id}/rotate", data={"keep": "hour"})
    bounded = await operator.post(
        f"{base}/{key.id}/bounds", data={"origins": "https://a.example", "routes": ""}
    )
    limited = await operator.post(f"{base}/{key.id}/limits", data=_RULES)
    revoked = await operator.post(f"{base}/{key.id}/revoke")

    first, second = (re.findall(r">(sk-\w+)<", page.text) for page in (made, rotated))
    assert len(first) == len(second) == 1
    assert first != second
    assert ledger.accounts.find_key(hash_key(second[0])) is not None
    assert "sk-" not in revoked.text
    assert "https://a.example" in bounded.text
    assert "600 requests/60 s" in limited.text
    assert "revoked" in revoked.text
    actions = [entry.action for entry in ledger.audit.entries(limit=5)]
    assert actions == ["key.revoke", "key.limits", "key.bounds", "key.rotate", "key.create"]


async def test_a_key_of_another_tenant_is_not_changed(
    operator: httpx.AsyncClient, ledger: Ledger
) -> None:
    ledger.accounts.create_tenant("acme")
    ledger.accounts.create_tenant("beta")
    key = ledger.accounts.create_key("beta", key_hash="h1")

    refused = await operator.post(f"/console/tenants/acme/keys/{key.id}/revoke")

    assert refused.status_code == 404
    assert ledger.accounts.keys("beta")[0].revoked is None


async def test_changes_are_found_by_operator_kind_and_time(
    operator: httpx.AsyncClient, ledger: Ledger
) -> None:
    specs = [KeySpec(tenant="t", key_hash=f"h{n}", name=f"k{n}") for n in range(60)]
    ledger.accounts.create_keys(specs, new_tenants=True, actor="kim")
    ledger.audit("lee", "tenant.create", "acme")

    newest = (await operator.get("/console/audit")).text
    older = re.findall(r"before=(\d+)", newest)
    rest = (await operator.get(f"/console/audit?before={older[0]}")).text
    by_kind = (await operator.get("/console/audit?kind=tenant&operator=lee")).text
    future = (await operator.get("/console/audit?from=2200-01-01T00:00")).text
    wrong = await operator.get("/console/audit?from=soon")

    assert ("k59<" in newest, "k5<" in newest) == (True, False)
    assert "k5<" in rest
    assert re.findall(r"<code>([\w.]+)</code>", by_kind) == ["tenant.create"]
    assert "<option selected>tenant</option><option>tenant.create</option>" in by_kind
    assert "No change matches." in future
    assert wrong.status_code == 400
