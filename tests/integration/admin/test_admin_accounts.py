"""The operators' listener: tenants, keys, usage, invoices, audit."""

import asyncio

import httpx
import pytest

from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.supervisor.bootstrap import bootstrap
from sluicegate.gateway.supervisor.errors import CannotStart
from sluicegate.gateway.types import KeyId, RequestEvent, RequestId, TenantId, Usage
from tests.support.admin import refused
from tests.support.ledgers import principals, record

pytestmark = pytest.mark.anyio

GROUP = '[{"name": "m", "unit": "requests", "capacity": 5, "window": 60}]'


async def test_a_key_is_shown_once_and_kept_as_a_hash(
    admin: httpx.AsyncClient, settings: Settings, ledger: Ledger
) -> None:
    await admin.post("/admin/tenants", json={"id": "acme"})

    created = await admin.post("/admin/keys", json={"tenant": "acme", "models": ["m"]})
    listed = await admin.get("/admin/keys?tenant=acme")

    text = created.json()["key"]
    assert created.status_code == 201
    assert text not in listed.text
    assert [key["id"] for key in listed.json()["keys"]] == [created.json()["id"]]
    assert ledger.accounts.find_key(hash_key(text)) is not None
    assert text.encode() not in (settings.data_dir / "ledger.db").read_bytes()


async def test_a_null_is_a_field_left_out(admin: httpx.AsyncClient) -> None:
    await admin.post("/admin/tenants", json={"id": "acme"})
    rule = {"name": "m", "unit": "requests", "capacity": 5, "window": 60, "shadow": None}

    created = await admin.post("/admin/keys", json={"tenant": "acme", "name": None})
    limited = await admin.put("/admin/tenants/acme/limits", json=[rule])

    assert created.status_code == 201, created.text
    assert limited.status_code == 200, limited.text


async def test_a_misspelt_field_is_told_the_known_one(admin: httpx.AsyncClient) -> None:
    response = await admin.post("/admin/keys", json={"tenent": "acme"})

    refused(response, 400, "invalid_request")
    assert response.json()["detail"].endswith("unknown field `tenent`. Did you mean `tenant`?")


async def test_a_revoked_key_is_no_principal_any_more(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    await admin.post("/admin/tenants", json={"id": "acme"})
    created = (await admin.post("/admin/keys", json={"tenant": "acme"})).json()

    revoked = await admin.delete(f"/admin/keys/{created['id']}")

    assert revoked.json()["revoked"]
    assert principals(ledger) == {}
    refused(await admin.delete("/admin/keys/key_nobody"), 404, "not_found")


async def test_many_keys_are_created_together_or_none_is(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    wanted = [{"tenant": "acme", "name": "a"}, {"tenant": "beta"}, {"tenant": "acme"}]

    refused(await admin.post("/admin/keys/bulk", json={"keys": wanted}), 404, "not_found")
    wrong = {"keys": [*wanted, {"tenant": "no tenant"}], "new_tenants": True}
    refused(await admin.post("/admin/keys/bulk", json=wrong), 400, "invalid_request")
    refused(await admin.post("/admin/keys/bulk", json={"keys": []}), 400, "invalid_request")
    before = (ledger.accounts.tenants(), principals(ledger))
    created = await admin.post("/admin/keys/bulk", json={"keys": wanted, "new_tenants": True})

    assert before == ([], {})
    assert created.status_code == 201
    keys = created.json()["keys"]
    assert [(key["tenant"], key["name"]) for key in keys] == [
        ("acme", "a"),
        ("beta", ""),
        ("acme", ""),
    ]
    found = principals(ledger)
    assert [found[hash_key(key["key"])].key for key in keys] == [key["id"] for key in keys]
    actions = [entry.action for entry in ledger.audit.entries()]
    assert actions == ["key.create"] * 3 + ["tenant.create"] * 2


async def test_a_budget_is_set_shown_and_removed(admin: httpx.AsyncClient, ledger: Ledger) -> None:
    await admin.post("/admin/tenants", json={"id": "acme"})
    path = "/admin/tenants/acme/budget"
    refused(await admin.get(path), 404, "not_found")

    made = await admin.put(path, json={"amount": "250.00", "refuse": True})
    shown = await admin.get(path)
    removed = await admin.delete(path)

    assert made.status_code == 200, made.text
    budget = {"amount": "250.00", "currency": "EUR", "thresholds": [80, 100], "refuse": True}
    assert made.json()["budget"] == budget
    assert shown.json().items() >= (budget | {"remaining": "250.000000000"}).items()
    assert removed.json()["budget"] is None
    assert ledger.accounts.tenant("acme").budget is None
    refused(await admin.put(path, json={"amount": "0"}), 400, "invalid_request")
    wrong = await admin.put("/admin/tenants/nobody/budget", json={"amount": "1"})
    refused(wrong, 404, "not_found")


async def test_limits_of_a_tenant_and_of_a_key_are_replaced(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    await admin.post("/admin/tenants", json={"id": "acme"})
    key = (await admin.post("/admin/keys", json={"tenant": "acme"})).json()

    await admin.put("/admin/tenants/acme/limits", content=GROUP)
    await admin.put(f"/admin/keys/{key['id']}/limits", content=GROUP)

    (principal,) = principals(ledger).values()
    assert principal.tenant_rules[0].capacity == 5
    assert principal.key_rules == principal.tenant_rules
    assert (await admin.get("/admin/tenants/acme")).json()["limits"][0]["name"] == "m"


async def test_a_key_is_limited_to_origins_and_routes(
    admin: httpx.AsyncClient, ledger: Ledger
) -> None:
    await admin.post("/admin/tenants", json={"id": "acme"})
    bounds = {"origins": ["https://a.example"], "routes": ["/v1/embed"]}
    key = (await admin.post("/admin/keys", json={"tenant": "acme"} | bounds)).json()
    (first,) = principals(ledger).values()

    changed = await admin.put(f"/admin/keys/{key['id']}/bounds", json={"routes": ["/v1/infer/*"]})

    (then,) = principals(ledger).values()
    assert first.origins == frozenset({"https://a.example"})
    assert first.routes == frozenset({"/v1/embed"})
    assert then.origins is None
    assert then.routes == frozenset({"/v1/infer/*"})
    assert changed.json()["routes"] == ["/v1/infer/*"]
    for wrong in ({"origins": ["https://a.example/page"]}, {"routes": ["v1"]}):
        answer = await admin.put(f"/admin/keys/{key['id']}/bounds", json=wrong)
        refused(answer, 400, "invalid_request")


async def test_a_body_that_does_not_fit_is_refused_by_name(admin: httpx.AsyncClient) -> None:
    for path, body, status, said in [
        ("/admin/tenants", {}, 400, "id"),
        ("/admin/tenants", {"id": 3}, 400, "id"),
        ("/admin/tenants", {"id": "a", "nmae": "x"}, 400, "nmae"),
        ("/admin/tenants", {"id": "a b"}, 400, "a b"),
        ("/admin/tenants", {"id": "taken"}, 409, "taken"),
        ("/admin/keys", {"tenant": "nobody"}, 404, "nobody"),
        ("/admin/cache/purge", {}, 400, "tenant"),
        ("/admin/cache/purge", {"tenant": "a", "model": "b"}, 400, "model"),
    ]:
        await admin.post("/admin/tenants", json={"id": "taken"})

        answer = await admin.post(path, json=body)

        assert answer.status_code == status
        assert said in answer.json()["detail"]


async def test_what_is_not_json_is_refused(admin: httpx.AsyncClient) -> None:
    refused(await admin.post("/admin/tenants", content=b"{"), 400, "invalid_request")


async def test_a_body_that_is_far_too_large_is_said_to_be(admin: httpx.AsyncClient) -> None:
    for method, path in [("POST", "/admin/tenants"), ("PUT", "/admin/config")]:
        answer = await admin.request(method, path, content=b'"' + b"x" * (11 * 1024 * 1024) + b'"')

        refused(answer, 413, "payload_too_large")


def bill(ledger: Ledger) -> None:
    """Put one request of 2026-09-10 into the ledger."""
    ledger.accounts.create_tenant("acme")
    usage = Usage.of(hit=1, computed=1, rows=1, tokens=9)
    event = RequestEvent(
        id=RequestId("req_1"),
        time=1_789_000_000 * 10**9,
        tenant=TenantId("acme"),
        key=KeyId("k"),
        model="m",
        task="classify",
        status=200,
        usage=usage,
        duration=0.1,
    )
    record(ledger, "log", 1, [event])


async def test_usage_and_invoices_are_json_or_csv(
    admin: httpx.AsyncClient, ledger: Ledger, settings: Settings
) -> None:
    price = "prices: [{since: 2026-01-01, hit: 1000000000, computed: 2000000000}]"
    (settings.config / "g.yaml").write_text(price)
    bill(ledger)
    month = "from=2026-09-01&to=2026-10-01"

    usage = await admin.get(f"/admin/usage?tenant=acme&{month}&group_by=model")
    table = await admin.get(f"/admin/usage?{month}&format=csv")
    invoice = await admin.get("/admin/invoices?tenant=acme&month=2026-09")
    sheet = await admin.get("/admin/invoices?tenant=acme&month=2026-09&format=csv")

    (row,) = usage.json()["rows"]
    assert (row["model"], row["items"], row["cost"]) == ("m", 2, "3.000000000")
    assert table.text.splitlines()[1].startswith("acme,m,1,2,1,0,1,0,1,9,3.0")
    assert invoice.json()["totals"] == [{"currency": "EUR", "amount": "3.00"}]
    assert sheet.headers["content-type"].startswith("text/csv")


async def test_a_query_that_does_not_fit_is_refused(admin: httpx.AsyncClient) -> None:
    for query in [
        *("usage?from=soon", "usage?from=null", "usage?group_by=colour", "usage?group_by=null"),
        *("invoices?tenant=a", "usage?format=xml", "audit?before=null", "audit?limit=null"),
        *("dead-letters?before=null",),
    ]:
        refused(await admin.get(f"/admin/{query}"), 400, "invalid_request")


async def test_who_changed_what_is_in_the_audit(admin: httpx.AsyncClient) -> None:
    await admin.post("/admin/config/reload")
    await admin.post("/admin/tenants", json={"id": "acme"})
    await admin.post("/admin/cache/purge", json={"tenant": "acme"})

    entries = (await admin.get("/admin/audit?limit=3")).json()["entries"]

    assert [(entry["action"], entry["subject"]) for entry in entries] == [
        ("cache.purge", "tenant:acme"),
        ("tenant.create", "acme"),
        ("config.publish", "generation 1"),
    ]


async def test_the_demo_key_is_made_once_and_stays_revoked(
    settings: Settings, ledger: Ledger
) -> None:
    text = "sk-demo-0123456789"
    for _ in range(2):
        await asyncio.to_thread(bootstrap, settings, text)

    (key,) = ledger.accounts.keys("demo")
    (principal,) = principals(ledger).values()
    assert {rule.capacity for rule in principal.tenant_rules} == {10_000_000}

    ledger.accounts.revoke(key.id)
    with pytest.raises(CannotStart, match="revoked"):
        await asyncio.to_thread(bootstrap, settings, text)
