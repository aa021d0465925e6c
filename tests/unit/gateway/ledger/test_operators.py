"""Operators in the ledger: created, rotated, revoked, expired; the audit names who did it."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from sluicegate.gateway.errors import Conflict, InvalidRequest, NotFound
from sluicegate.gateway.ledger import operators
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.store import to_datetime
from tests.support.ledgers import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(database: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.create(database, clock=clock) as opened:
        yield opened


def valid(ledger: Ledger) -> dict[str, str]:
    return {key.key_hash: key.operator for key in ledger.operators.valid_keys()}


def test_an_operator_has_roles_and_one_key(ledger: Ledger) -> None:
    made = ledger.operators.create("alice", roles=["viewer", "billing"], key_hash="h1")

    assert (made.name, made.roles, made.revoked) == ("alice", ("billing", "viewer"), None)
    assert ledger.operators.accounts() == [made]
    assert valid(ledger) == {"h1": "alice"}


def test_roles_are_replaced(ledger: Ledger) -> None:
    ledger.operators.create("alice", roles=["viewer"], key_hash="h1")

    changed = ledger.operators.set_roles("alice", ["operator"])

    assert changed.roles == ("operator",)
    assert [key.roles for key in ledger.operators.valid_keys()] == [("operator",)]


def test_a_rotated_key_is_valid_for_as_long_as_said(ledger: Ledger, clock: Clock) -> None:
    ledger.operators.create("alice", roles=["viewer"], key_hash="h1")

    ledger.operators.rotate("alice", key_hash="h2", keep=60.0)

    assert valid(ledger) == {"h1": "alice", "h2": "alice"}
    clock.advance(60.0)
    assert valid(ledger) == {"h2": "alice"}


def test_a_former_key_ends_as_said_though_the_key_expires_later(
    ledger: Ledger, clock: Clock
) -> None:
    ends = to_datetime(clock.now) + timedelta(days=1)
    ledger.operators.create("alice", roles=["viewer"], key_hash="h1", expires=ends)

    ledger.operators.rotate("alice", key_hash="h2", keep=60.0)
    clock.advance(60.0)

    assert valid(ledger) == {"h2": "alice"}


def test_a_rotation_ends_all_texts_but_the_last(ledger: Ledger, clock: Clock) -> None:
    ledger.operators.create("alice", roles=["viewer"], key_hash="h1")

    ledger.operators.rotate("alice", key_hash="h2", keep=60.0)
    ledger.operators.rotate("alice", key_hash="h3", keep=0.0)

    assert valid(ledger) == {"h3": "alice"}
    clock.advance(-30.0)  # the clock of another machine
    assert valid(ledger) == {"h3": "alice"}


def test_no_text_outlives_the_key(ledger: Ledger, clock: Clock) -> None:
    ends = to_datetime(clock.now) + timedelta(seconds=10)
    ledger.operators.create("alice", roles=["viewer"], key_hash="h1", expires=ends)

    ledger.operators.rotate("alice", key_hash="h2", keep=60.0)
    clock.advance(10.0)

    assert valid(ledger) == {}


def test_a_revoked_operator_is_gone_for_ever(ledger: Ledger) -> None:
    ledger.operators.create("alice", roles=["viewer"], key_hash="h1")

    first = ledger.operators.revoke("alice")
    second = ledger.operators.revoke("alice")

    assert first.revoked is not None
    assert second == first
    assert valid(ledger) == {}
    with pytest.raises(Conflict, match="is revoked"):
        ledger.operators.rotate("alice", key_hash="h2", keep=0.0)
    with pytest.raises(Conflict, match="is revoked"):
        ledger.operators.set_roles("alice", ["admin"])
    with pytest.raises(Conflict, match="there is, or was, an operator `alice`"):
        ledger.operators.create("alice", roles=["viewer"], key_hash="h3")


def test_an_unknown_operator_is_not_found(ledger: Ledger) -> None:
    with pytest.raises(NotFound, match="no operator `nobody`"):
        ledger.operators.rotate("nobody", key_hash="h", keep=0.0)
    with pytest.raises(NotFound, match="no operator `nobody`"):
        ledger.operators.revoke("nobody")


@pytest.mark.parametrize("name", ["", "a b", "Admin", "metrics", "-x", "x" * 65, "oidc:alice"])
def test_a_name_that_the_audit_could_confuse_is_refused(ledger: Ledger, name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name an operator"):
        ledger.operators.create(name, roles=["viewer"], key_hash="h1")


def test_a_key_that_has_expired_already_is_refused(ledger: Ledger, clock: Clock) -> None:
    with pytest.raises(InvalidRequest, match="`expires`"):
        ledger.operators.create(
            "alice", roles=["viewer"], key_hash="h1", expires=to_datetime(clock.now)
        )


def test_there_are_only_so_many(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "MAX_OPERATORS", 1)
    ledger.operators.create("alice", roles=["viewer"], key_hash="h1")

    with pytest.raises(Conflict, match="revoke some"):
        ledger.operators.create("bob", roles=["viewer"], key_hash="h2")


def test_the_audit_names_who_changed_which_operator(ledger: Ledger) -> None:
    ledger.operators.create("alice", roles=["viewer"], key_hash="h1", actor="root")
    ledger.operators.set_roles("alice", ["billing"], actor="bob")
    ledger.operators.rotate("alice", key_hash="h2", keep=1.0, actor="bob")
    ledger.operators.revoke("alice", actor="root")

    entries = ledger.audit.entries()

    assert [(one.actor, one.action, one.detail) for one in reversed(entries)] == [
        ("root", "operator.create", {"roles": ["viewer"]}),
        ("bob", "operator.roles", {"roles": ["billing"]}),
        ("bob", "operator.rotate", {}),
        ("root", "operator.revoke", {}),
    ]
    assert {one.subject for one in entries} == {"alice"}
