"""Operators by name: what they may do, and what the audit says of it."""

import re
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from sluicegate.gateway.auth.keys import new_key
from sluicegate.gateway.config.sources import DocumentSource
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Published
from sluicegate.gateway.settings import Settings
from tests.support.admin import KEY, client_of, refused

pytestmark = pytest.mark.anyio


async def created(admin: httpx.AsyncClient, name: str, *roles: str) -> dict[str, str]:
    """Create an operator and return the header of its key."""
    answer = await admin.post("/admin/operators", json={"name": name, "roles": roles})
    assert answer.status_code == 201, answer.text
    return {"authorization": f"Bearer {answer.json()['key']}"}


async def test_an_operator_may_do_what_its_roles_say(admin: httpx.AsyncClient) -> None:
    viewer = await created(admin, "vera", "viewer")
    both = await created(admin, "olga", "operator", "billing")

    seen = await admin.get("/admin/tenants", headers=viewer)
    denied = await admin.post("/admin/tenants", json={"id": "acme"}, headers=viewer)
    made = await admin.post("/admin/tenants", json={"id": "acme"}, headers=both)
    own = await admin.get("/admin/operators", headers=both)
    who = await admin.get("/admin/whoami", headers=both)

    assert (seen.status_code, made.status_code) == (200, 201)
    detail = refused(denied, 403, "permission_denied")["detail"]
    assert re.findall("`(.*?)`", detail)[:3] == ["operator", "vera", "viewer"]
    refused(own, 403, "permission_denied")
    assert who.json() == {"name": "olga", "roles": ["billing", "operator"]}


async def test_the_audit_names_the_operator(admin: httpx.AsyncClient) -> None:
    olga = await created(admin, "olga", "operator", "billing")
    await admin.post("/admin/tenants", json={"id": "acme"}, headers=olga)
    await admin.put("/admin/tenants/acme/limits", json=[], headers=olga)
    key = (await admin.post("/admin/keys", json={"tenant": "acme"}, headers=olga)).json()["id"]
    await admin.put(f"/admin/keys/{key}/limits", json=[], headers=olga)
    await admin.put(f"/admin/keys/{key}/bounds", json={}, headers=olga)
    await admin.delete(f"/admin/keys/{key}", headers=olga)
    await admin.post("/admin/config/reload", headers=olga)
    await admin.put("/admin/config", json={"models": {"m": {"cache_ttl": 2}}}, headers=olga)
    await admin.post("/admin/config/rollback", headers=olga)
    await admin.post("/admin/cache/purge", json={"model": "m"}, headers=olga)
    await admin.post("/admin/models/reload", headers=olga)

    entries = (await admin.get("/admin/audit")).json()["entries"]

    actions = {entry["action"] for entry in entries if entry["actor"] == "olga"}
    assert actions == {
        *("tenant.create", "tenant.limits", "config.publish", "cache.purge", "models.reload"),
        *("key.create", "key.limits", "key.bounds", "key.revoke"),
    }
    others = {(entry["actor"], entry["action"]) for entry in entries if entry["actor"] != "olga"}
    assert others == {("admin", "operator.create")}
    history = (await admin.get("/admin/config")).json()["history"]
    assert {line["author"] for line in history} == {"olga"}


async def test_a_rotated_and_a_revoked_key_end_at_once(admin: httpx.AsyncClient) -> None:
    first = await created(admin, "vera", "viewer")
    rotated = await admin.post("/admin/operators/vera/rotate", json={"former_valid_for": 0})
    second = {"authorization": f"Bearer {rotated.json()['key']}"}

    refused(await admin.get("/admin/whoami", headers=first), 401, "authentication_failed")
    assert (await admin.get("/admin/whoami", headers=second)).status_code == 200
    revoked = await admin.delete("/admin/operators/vera")
    refused(await admin.get("/admin/whoami", headers=second), 401, "authentication_failed")
    assert revoked.json()["revoked"]


async def test_changed_roles_apply_at_once(admin: httpx.AsyncClient) -> None:
    vera = await created(admin, "vera", "viewer")

    await admin.put("/admin/operators/vera/roles", json={"roles": ["metrics"]})

    refused(await admin.get("/admin/whoami", headers=vera), 403, "permission_denied")
    assert (await admin.get("/metrics", headers=vera)).status_code == 200


async def test_keys_of_operators_are_shown_once(admin: httpx.AsyncClient) -> None:
    header = await created(admin, "vera", "viewer")
    listed = await admin.get("/admin/operators")

    assert [one["name"] for one in listed.json()["operators"]] == ["vera"]
    assert "hash" not in listed.text
    assert header["authorization"].removeprefix("Bearer ") not in listed.text


@pytest.mark.parametrize(
    "body",
    [
        {"name": "vera", "roles": []},
        {"name": "vera", "roles": ["astronaut"]},
        {"name": "admin", "roles": ["viewer"]},
        {"name": "vera"},
        {"name": "vera", "roles": ["viewer"], "expires": "2020-01-01T00:00:00Z"},
    ],
)
async def test_an_operator_that_cannot_be_is_refused(
    admin: httpx.AsyncClient, body: dict[str, object]
) -> None:
    refused(await admin.post("/admin/operators", json=body), 400, "invalid_request")
    refused(await admin.delete("/admin/operators/vera"), 404, "not_found")


async def test_the_admin_key_is_the_operator_admin(admin: httpx.AsyncClient) -> None:
    header = {"authorization": f"Bearer {KEY}"}

    answer = await admin.get("/admin/whoami", headers=header)

    assert answer.json() == {"name": "admin", "roles": ["admin"]}


async def test_prices_need_the_role_billing_too(admin: httpx.AsyncClient) -> None:
    document = {"models": {"m": {"cache_ttl": 2}}}
    priced = document | {"prices": [{"model": "*", "since": "2026-01-01", "hit": 7}]}
    olga = await created(admin, "olga", "operator")
    both = await created(admin, "otto", "operator", "billing")
    bill = await created(admin, "bill", "billing")

    plain = await admin.put("/admin/config", json=document, headers=olga)
    for action in (("PUT", "/admin/config"), ("PUT", "/admin/config?dry_run=true")):
        denied = await admin.request(*action, json=priced, headers=olga)
        assert "role `billing`" in refused(denied, 403, "permission_denied")["detail"]
    allowed = await admin.put("/admin/config", json=priced, headers=both)
    back = await admin.post("/admin/config/rollback", headers=olga)

    assert (plain.status_code, allowed.status_code) == (200, 200)
    refused(back, 403, "permission_denied")
    refused(await admin.put("/admin/config", json=priced, headers=bill), 403, "permission_denied")


async def test_prices_of_a_document_that_cannot_be_read_need_the_role_billing_too(
    admin: httpx.AsyncClient, redis: Redis
) -> None:
    """A later version published it: without prices in place of its own all would be free."""
    later = DocumentSource(name="g.yaml", text="prices_of_a_later_version: []")
    await Control(redis).publish(
        Published(
            generation=1, origin=1, digest="d", sources=(later,), author="a", reason="put", time=0.0
        )
    )
    document = {"models": {"m": {"cache_ttl": 2}}}

    denied = await admin.put(
        "/admin/config", json=document, headers=await created(admin, "olga", "operator")
    )
    both = await created(admin, "otto", "operator", "billing")
    allowed = await admin.put("/admin/config", json=document, headers=both)

    assert "role `billing`" in refused(denied, 403, "permission_denied")["detail"]
    assert allowed.status_code == 200


async def test_without_the_ledger_unknown_operators_wait_and_the_admin_key_works(
    settings: Settings, redis: Redis, tmp_path: Path
) -> None:
    (tmp_path / "no-folder").write_text("")
    unknown = {"authorization": f"Bearer {new_key('op')}"}
    with Ledger(f"sqlite:///{tmp_path / 'no-folder' / 'ledger.db'}") as away:
        async with client_of(settings, redis, away) as client:
            refusal = await client.get("/admin/whoami", headers=unknown)
            wrong = await client.get("/admin/whoami", headers={"authorization": "Bearer wrong"})
            ready = await client.get("/health/ready", headers=unknown)
            admin = await client.get("/admin/whoami")

    refused(refusal, 503, "dependency_unavailable")
    assert refusal.headers["retry-after"] == "1"
    refused(wrong, 401, "authentication_failed")
    assert admin.json()["name"] == "admin"
    assert "backends" not in ready.json()
