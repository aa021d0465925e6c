"""Tenants and keys: created, limited, revoked, expired; what workers load follows."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy

from sluicegate.gateway.errors import (
    AuthenticationFailed,
    Conflict,
    DependencyUnavailable,
    InvalidRequest,
    NotFound,
)
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.store import to_datetime
from sluicegate.gateway.types import Rule
from testing.waiting import wait_until
from tests.support.ledgers import Clock, ledger_url, principals

RULE = Rule(name="minute", unit="requests", capacity=10, window=60.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(database: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.create(database, clock=clock) as opened:
        yield opened


def test_a_key_makes_a_principal_of_its_tenant(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme", rules=[RULE])
    key = ledger.accounts.create_key("acme", key_hash="h1", models=["b", "a"], rules=[])

    (principal,) = principals(ledger).values()

    assert (principal.tenant, principal.key) == ("acme", key.id)
    assert principal.tenant_rules == (RULE,)
    assert principal.key_rules == ()
    assert principal.models == frozenset({"a", "b"})


def test_principals_are_found_by_the_hash_of_their_key(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme")
    ledger.accounts.create_key("acme", key_hash="h1")
    ledger.accounts.create_key("acme", key_hash="h2")

    found = principals(ledger)

    assert set(found) == {"h1", "h2"}
    assert found["h1"].models is None


def test_principals_with_the_same_rules_share_them_in_memory(ledger: Ledger) -> None:
    for name in ("acme", "beta"):
        ledger.accounts.create_tenant(name, rules=[RULE])
        ledger.accounts.create_key(name, key_hash=name)

    found = principals(ledger)

    assert found["acme"].tenant_rules is found["beta"].tenant_rules


def test_a_revoked_key_is_no_longer_loaded(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme")
    key = ledger.accounts.create_key("acme", key_hash="h1")
    before = ledger.principals.version()

    revoked = ledger.accounts.revoke(key.id)

    assert principals(ledger) == {}
    assert ledger.principals.version() != before
    assert revoked.revoked is not None
    assert ledger.accounts.revoke(key.id) == revoked


def test_a_key_expires_by_itself(ledger: Ledger, clock: Clock) -> None:
    ledger.accounts.create_tenant("acme")
    expires = to_datetime(clock.now) + timedelta(seconds=60)
    ledger.accounts.create_key("acme", key_hash="h1", expires=expires)
    loaded = principals(ledger)

    clock.advance(61)

    assert set(loaded) == {"h1"}
    assert principals(ledger) == {}


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


def test_an_expired_secret_cannot_rotate_its_key(ledger: Ledger, clock: Clock) -> None:
    """A worker may not yet know that the secret has expired, and so passes the request on."""
    rotate = ledger.accounts.rotate
    ledger.accounts.create_tenant("acme")
    key = ledger.accounts.create_key("acme", key_hash="h1").id
    rotate(key, key_hash="h2", former_hash="h1", keep=100)
    rotate(key, key_hash="h3", former_hash="h1", keep=100)

    with pytest.raises(AuthenticationFailed):
        rotate(key, key_hash="h4", former_hash="h2", keep=100)
    clock.advance(101)
    with pytest.raises(AuthenticationFailed):
        rotate(key, key_hash="h4", former_hash="h1", keep=100)
    assert set(principals(ledger)) == {"h3"}
    ledger.accounts.revoke(key)
    with pytest.raises(AuthenticationFailed):
        rotate(key, key_hash="h4", former_hash="h3", keep=100)


@pytest.mark.parametrize(
    "database", [pytest.param("postgresql", marks=pytest.mark.system)], indirect=True
)
def test_one_of_two_concurrent_rotations_by_the_same_secret_succeeds(
    ledger: Ledger, database: str
) -> None:
    ledger.accounts.create_tenant("acme")
    key = ledger.accounts.create_key("acme", key_hash="h1").id
    waiting = sqlalchemy.text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    )

    def rotate(to: str) -> str:
        try:
            ledger.accounts.rotate(key, key_hash=to, former_hash="h1", keep=0)
        except AuthenticationFailed:
            return ""
        return to

    engine = sqlalchemy.create_engine(database)
    # A transaction sees one state of the activity.
    watching = engine.execution_options(isolation_level="AUTOCOMMIT")
    with ThreadPoolExecutor(2) as threads, watching.connect() as watcher, engine.begin() as holder:
        # Held until both wait for it, so that neither is done before the other begins.
        holder.execute(sqlalchemy.select(schema.keys).with_for_update())
        outcomes = [threads.submit(rotate, to) for to in ("h2", "h3")]
        wait_until(lambda: watcher.scalar(waiting) == 2)
        holder.commit()
        passed = {outcome.result(timeout=60) for outcome in outcomes}
    engine.dispose()

    assert "" in passed
    assert set(principals(ledger)) == passed - {""}


def test_the_former_secret_expires_with_its_key(ledger: Ledger, clock: Clock) -> None:
    ledger.accounts.create_tenant("acme")
    ends = to_datetime(clock.now) + timedelta(seconds=60)
    key = ledger.accounts.create_key("acme", key_hash="h1", expires=ends).id

    rotated = ledger.accounts.rotate(key, key_hash="h2", former_hash="h1", keep=1000)

    assert rotated.former_expires == ends


def test_every_change_makes_another_version_and_reading_does_not(ledger: Ledger) -> None:
    seen = [ledger.principals.version()]

    ledger.accounts.create_tenant("acme")
    seen.append(ledger.principals.version())
    key = ledger.accounts.create_key("acme", key_hash="h1")
    seen.append(ledger.principals.version())
    ledger.accounts.set_limits("acme", [RULE])
    seen.append(ledger.principals.version())
    ledger.accounts.set_key_limits(key.id, [RULE])
    seen.append(ledger.principals.version())
    principals(ledger)

    numbers = [version.number for version in seen]
    assert sorted(set(numbers)) == numbers
    assert len({version.token for version in seen}) == len(seen)
    assert ledger.principals.version() == seen[-1]


def test_limits_are_replaced(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme", rules=[RULE])
    key = ledger.accounts.create_key("acme", key_hash="h1")

    tenant = ledger.accounts.set_limits("acme", [])
    limited = ledger.accounts.set_key_limits(key.id, [RULE])

    assert tenant.limits == ()
    assert limited.limits == (RULE,)
    (principal,) = principals(ledger).values()
    assert (principal.tenant_rules, principal.key_rules) == ((), (RULE,))


def test_what_exists_is_not_created_again(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme")
    ledger.accounts.create_key("acme", key_hash="h1")
    version = ledger.principals.version()

    with pytest.raises(Conflict):
        ledger.accounts.create_tenant("acme")
    with pytest.raises(Conflict):
        ledger.accounts.create_key("acme", key_hash="h1")

    assert ledger.principals.version() == version


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
        principals(ledger)

    assert caught.value.retryable
    assert caught.value.retry_after is not None


def test_a_file_that_is_no_database_is_an_error_of_the_dependency(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database" * 1000)

    with Ledger(ledger_url(tmp_path)) as ledger, pytest.raises(DependencyUnavailable):
        ledger.principals.version()


def test_a_text_that_ends_at_once_is_valid_on_no_machine(ledger: Ledger, clock: Clock) -> None:
    ledger.accounts.create_tenant("acme")
    first, other = (ledger.accounts.create_key("acme", key_hash=h).id for h in ("a1", "b1"))

    rotated = ledger.accounts.rotate(first, key_hash="a2", former_hash="a1", keep=0)
    changed = ledger.accounts.replace_secret(other, key_hash="b2", keep=0, actor="kim")
    ended = {rotated.former_expires, changed.former_expires}
    assert ended == {to_datetime(clock.now)}
    clock.advance(-30)  # the clock of another machine

    assert set(principals(ledger)) == {"a2", "b2"}


def test_an_operator_gives_a_key_another_text(ledger: Ledger, clock: Clock) -> None:
    ledger.accounts.create_tenant("acme")
    key = ledger.accounts.create_key("acme", key_hash="h1")

    changed = ledger.accounts.replace_secret(key.id, key_hash="h2", keep=60, actor="kim")
    both = set(principals(ledger))
    clock.advance(61)

    assert changed.former_expires == to_datetime(clock.now) - timedelta(seconds=1)
    assert (both, set(principals(ledger))) == ({"h1", "h2"}, {"h2"})
    assert ledger.audit.entries(limit=1)[0].actor == "kim"


def test_a_revoked_key_gets_no_other_text(ledger: Ledger) -> None:
    ledger.accounts.create_tenant("acme")
    key = ledger.accounts.create_key("acme", key_hash="h1")
    ledger.accounts.revoke(key.id)

    with pytest.raises(InvalidRequest, match="create another"):
        ledger.accounts.replace_secret(key.id, key_hash="h2", keep=60, actor="kim")
