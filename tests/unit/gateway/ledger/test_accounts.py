"""Tenants and keys: created, limited, revoked, expired; what workers load follows."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.errors import Conflict, DependencyUnavailable, InvalidRequest, NotFound
from gateway.ledger.ledger import Ledger
from gateway.ledger.store import to_datetime
from gateway.types import Rule
from tests.support.ledgers import Clock, ledger_url

RULE = Rule(name="minute", unit="requests", capacity=10, window=60.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(database: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger(database, clock=clock) as opened:
        yield opened


def test_a_key_makes_a_principal_of_its_tenant(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme", rules=[RULE])
    key = ledger.accounts.create_key("acme", key_hash="h1", models=["b", "a"], rules=[])

    (principal,) = ledger.accounts.load_principals().values()

    assert (principal.tenant, principal.key) == ("acme", key.id)
    assert principal.tenant_rules == (RULE,)
    assert principal.key_rules == ()
    assert principal.models == frozenset({"a", "b"})


def test_principals_are_found_by_the_hash_of_their_key(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme")
    ledger.accounts.create_key("acme", key_hash="h1")
    ledger.accounts.create_key("acme", key_hash="h2")

    principals = ledger.accounts.load_principals()

    assert set(principals) == {"h1", "h2"}
    assert principals["h1"].models is None


def test_principals_with_the_same_rules_share_them_in_memory(ledger: Ledger) -> None:
    for name in ("acme", "beta"):
        ledger.accounts.create_tenant(name, rules=[RULE])
        ledger.accounts.create_key(name, key_hash=name)

    principals = ledger.accounts.load_principals()

    assert principals["acme"].tenant_rules is principals["beta"].tenant_rules


def test_a_revoked_key_is_no_longer_loaded(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme")
    key = ledger.accounts.create_key("acme", key_hash="h1")
    before = ledger.accounts.version()

    revoked = ledger.accounts.revoke(key.id)

    assert ledger.accounts.load_principals() == {}
    assert ledger.accounts.version() != before
    assert revoked.revoked is not None
    assert ledger.accounts.revoke(key.id) == revoked


def test_a_key_expires_by_itself_and_the_version_says_so(ledger: Ledger, clock: Clock) -> None:
    ledger.accounts.create_tenant("acme")
    expires = to_datetime(clock.now) + timedelta(seconds=60)
    ledger.accounts.create_key("acme", key_hash="h1", expires=expires)
    before = ledger.accounts.version()
    loaded = ledger.accounts.load_principals()

    clock.advance(61)

    assert set(loaded) == {"h1"}
    assert ledger.accounts.load_principals() == {}
    assert ledger.accounts.version() != before


def test_a_former_text_does_not_prolong_itself(ledger: Ledger, clock: Clock) -> None:
    ledger.accounts.create_tenant("acme")
    key = ledger.accounts.create_key("acme", key_hash="h1").id
    ledger.accounts.rotate(key, key_hash="h2", former_hash="h1", keep=100)
    ends = to_datetime(clock.now) + timedelta(seconds=100)
    clock.advance(60)

    again = ledger.accounts.rotate(key, key_hash="h3", former_hash="h1", keep=1000)
    shorter = ledger.accounts.rotate(key, key_hash="h4", former_hash="h1", keep=10)
    by_owner = ledger.accounts.rotate(key, key_hash="h5", former_hash="h4", keep=1000)

    assert again.former_expires == ends
    assert shorter.former_expires == to_datetime(clock.now) + timedelta(seconds=10)
    assert by_owner.former_expires == to_datetime(clock.now) + timedelta(seconds=1000)


def test_a_former_text_ends_with_its_key(ledger: Ledger, clock: Clock) -> None:
    ledger.accounts.create_tenant("acme")
    ends = to_datetime(clock.now) + timedelta(seconds=60)
    key = ledger.accounts.create_key("acme", key_hash="h1", expires=ends).id

    rotated = ledger.accounts.rotate(key, key_hash="h2", former_hash="h1", keep=1000)

    assert rotated.former_expires == ends


def test_every_change_makes_another_version_and_reading_does_not(ledger: Ledger) -> None:
    seen = [ledger.accounts.version()]

    ledger.accounts.create_tenant("acme")
    seen.append(ledger.accounts.version())
    key = ledger.accounts.create_key("acme", key_hash="h1")
    seen.append(ledger.accounts.version())
    ledger.accounts.set_limits("acme", [RULE])
    seen.append(ledger.accounts.version())
    ledger.accounts.set_key_limits(key.id, [RULE])
    seen.append(ledger.accounts.version())
    ledger.accounts.load_principals()

    assert sorted(set(seen)) == seen
    assert ledger.accounts.version() == seen[-1]


def test_limits_are_replaced(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme", rules=[RULE])
    key = ledger.accounts.create_key("acme", key_hash="h1")

    tenant = ledger.accounts.set_limits("acme", [])
    limited = ledger.accounts.set_key_limits(key.id, [RULE])

    assert tenant.limits == ()
    assert limited.limits == (RULE,)
    (principal,) = ledger.accounts.load_principals().values()
    assert (principal.tenant_rules, principal.key_rules) == ((), (RULE,))


def test_what_exists_is_not_created_again(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme")
    ledger.accounts.create_key("acme", key_hash="h1")
    version = ledger.accounts.version()

    with pytest.raises(Conflict):
        ledger.accounts.create_tenant("acme")
    with pytest.raises(Conflict):
        ledger.accounts.create_key("acme", key_hash="h1")

    assert ledger.accounts.version() == version


def test_what_does_not_exist_is_not_found(ledger: Ledger) -> None:
    with pytest.raises(NotFound, match="nobody"):
        ledger.accounts.tenant("nobody")
    with pytest.raises(NotFound):
        ledger.accounts.create_key("nobody", key_hash="h1")
    with pytest.raises(NotFound):
        ledger.accounts.revoke("key_x")
    with pytest.raises(NotFound):
        ledger.accounts.set_limits("nobody", [])


@pytest.mark.parametrize("tenant", ["", "a b", "../x", "x" * 65, "a\n"])
def test_a_tenant_has_a_plain_name(ledger: Ledger, tenant: str) -> None:
    with pytest.raises(InvalidRequest):
        ledger.accounts.create_tenant(tenant)


@pytest.mark.parametrize(
    "rules",
    [
        [RULE, RULE],
        [Rule(name="a b", unit="requests", capacity=1, window=1.0)],
        [Rule(name="a", unit="bytes", capacity=1, window=1.0)],
        [Rule(name="a", unit="items", capacity=0, window=1.0)],
        [Rule(name="a", unit="items", capacity=1, window=0.0)],
        [Rule(name="a", unit="items", capacity=1, window=float("nan"))],
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(ledger: Ledger, rules: list[Rule]) -> None:
    with pytest.raises(InvalidRequest):
        ledger.accounts.create_tenant("acme", rules=rules)


def test_changes_are_audited_with_their_actor_and_without_hashes(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme", actor="admin")
    key = ledger.accounts.create_key("acme", key_hash="h1-secret", name="ci", actor="admin")
    ledger.audit("admin", "config.reload", "config", {"generation": 2})

    entries = ledger.audit.entries()

    assert [e.action for e in entries] == ["config.reload", "key.create", "tenant.create"]
    assert [e.subject for e in entries] == ["config", key.id, "acme"]
    assert entries[1].detail == {"tenant": "acme", "name": "ci"}
    assert "h1-secret" not in repr(entries)
    assert ledger.audit.entries(limit=1, before=entries[1].number) == [entries[2]]


def test_keys_are_listed_oldest_first_by_tenant(ledger: Ledger, clock: Clock) -> None:
    for tenant in ("acme", "other"):
        ledger.accounts.create_tenant(tenant)
    made = []
    for number, tenant in enumerate(["acme", "other", "acme"]):
        clock.advance(1)
        made.append(ledger.accounts.create_key(tenant, key_hash=f"h{number}"))

    assert ledger.accounts.keys() == made
    assert ledger.accounts.keys("acme") == [made[0], made[2]]
    assert ledger.accounts.find_key("h1") == made[1]
    assert ledger.accounts.find_key("h9") is None
    assert [tenant.id for tenant in ledger.accounts.tenants()] == ["acme", "other"]


def test_a_ledger_that_cannot_be_opened_is_an_error_to_retry(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()

    with Ledger(ledger_url(tmp_path)) as ledger, pytest.raises(DependencyUnavailable) as caught:
        ledger.accounts.load_principals()

    assert caught.value.retryable
    assert caught.value.retry_after is not None


def test_a_file_that_is_no_database_is_an_error_of_the_dependency(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database" * 1000)

    with Ledger(ledger_url(tmp_path)) as ledger, pytest.raises(DependencyUnavailable):
        ledger.accounts.version()
