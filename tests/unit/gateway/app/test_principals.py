"""The key ring follows the store, and keeps its keys while that is down or broken."""

import logging

import pytest

from sluicegate.gateway.app.principals import PrincipalsFollower
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.migrations import LedgerEmpty
from sluicegate.gateway.ledger.principals import AccountsVersion, PrincipalChanges
from sluicegate.gateway.types import KeyId, Principal, TenantId
from testing.waiting import until

pytestmark = pytest.mark.anyio
_KEY = "sk-the-key-of-a-caller"


class Accounts:
    """A store of keys that tests change; `trouble` is raised by every call."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys
        self.number = 0
        self.loads = 0
        self.asked = 0
        self.expires: int | None = None
        self.damaged: list[str] = []
        self.trouble: Exception | None = None

    def changes(self, since: AccountsVersion | None) -> PrincipalChanges | None:
        """Return who has which key, by hash, as long as that has another number."""
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        version = AccountsVersion(number=self.number)
        if version == since:
            return None
        self.loads += 1
        principal = Principal(tenant=TenantId("acme"), key=KeyId("key_1"), expires=self.expires)
        hashes = [*self.damaged, *map(hash_key, self.keys)]
        found = iter([(hash_, principal) for hash_ in hashes])
        return PrincipalChanges(version=version, is_everything=True, principals=found)

    def change(self, *keys: str) -> None:
        """Have other keys from now on."""
        self.keys = keys
        self.number += 1


def knows(ring: KeyRing, key: str = _KEY) -> bool:
    return ring.find(key.encode()) is not None


async def test_keys_are_known_as_soon_as_it_is_entered() -> None:
    ring, accounts = KeyRing(), Accounts(_KEY)

    async with PrincipalsFollower(ring=ring, accounts=accounts) as follower:
        assert follower.is_loaded
        assert knows(ring)


async def test_keys_are_loaded_again_only_when_the_version_changed() -> None:
    ring, accounts = KeyRing(), Accounts(_KEY)
    async with PrincipalsFollower(ring=ring, accounts=accounts, poll=60.0) as follower:
        await follower.refresh()
        loads = accounts.loads

        accounts.change()
        await follower.refresh()

        assert loads == 1
        assert not knows(ring)


async def test_a_change_without_an_announcement_is_found() -> None:
    ring, accounts = KeyRing(), Accounts()
    async with PrincipalsFollower(ring=ring, accounts=accounts, poll=0.001):
        accounts.change(_KEY)

        await until(lambda: knows(ring))


async def test_known_keys_stay_known_while_the_store_is_down() -> None:
    ring, accounts = KeyRing(), Accounts(_KEY)
    async with PrincipalsFollower(ring=ring, accounts=accounts, poll=60.0) as follower:
        accounts.trouble = DependencyUnavailable("the ledger cannot be reached")
        await follower.refresh()
        during = knows(ring)
        accounts.trouble = None
        accounts.change()
        await follower.refresh()

        assert (during, knows(ring)) == (True, False)


async def test_a_key_ends_when_it_expires_also_while_the_store_is_down() -> None:
    ring, accounts, now = KeyRing(), Accounts(_KEY), [0]
    accounts.expires = 100
    async with PrincipalsFollower(
        ring=ring, accounts=accounts, poll=60.0, wall=lambda: now[0]
    ) as follower:
        accounts.trouble = DependencyUnavailable("the ledger cannot be reached")
        await follower.refresh()
        before = knows(ring)
        now[0] = 100
        await follower.refresh()

        assert (before, knows(ring)) == (True, False)


async def test_a_failed_reload_of_keys_raises() -> None:
    accounts = Accounts(_KEY)
    async with PrincipalsFollower(ring=KeyRing(), accounts=accounts, poll=60.0) as follower:
        accounts.trouble = DependencyUnavailable("the ledger cannot be reached")

        with pytest.raises(DependencyUnavailable):
            await follower.read_again()


async def test_a_worker_starts_while_the_store_is_down_and_knows_nobody() -> None:
    ring, accounts = KeyRing(), Accounts(_KEY)
    accounts.trouble = DependencyUnavailable("the ledger cannot be reached")

    async with PrincipalsFollower(ring=ring, accounts=accounts, poll=0.001) as follower:
        before = follower.is_loaded
        accounts.trouble = None
        await until(lambda: follower.is_loaded)

        assert not before
        assert knows(ring)


async def test_a_bad_read_does_not_end_the_following(caplog: pytest.LogCaptureFixture) -> None:
    ring, accounts = KeyRing(), Accounts(_KEY)
    with caplog.at_level(logging.CRITICAL):
        async with PrincipalsFollower(ring=ring, accounts=accounts, poll=0.001):
            accounts.trouble = ValueError("a row that cannot be read")
            asked = accounts.asked
            await until(lambda: accounts.asked > asked + 1)
            accounts.trouble = None
            accounts.change()

            await until(lambda: not knows(ring))


async def test_a_key_whose_hash_is_damaged_does_not_keep_others_from_being_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ring, accounts = KeyRing(), Accounts(_KEY)
    accounts.damaged = ["no-hash"]

    async with PrincipalsFollower(ring=ring, accounts=accounts):
        assert knows(ring)
    assert [record.__dict__["key"] for record in caplog.records] == ["key_1"]
    assert "no-hash" not in caplog.text


async def test_a_store_that_is_away_is_logged_once_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ring, accounts = KeyRing(), Accounts(_KEY)
    async with PrincipalsFollower(ring=ring, accounts=accounts, poll=60.0) as follower:
        for trouble in (DependencyUnavailable("away"), None, DependencyUnavailable("away")):
            accounts.trouble = trouble
            for _ in range(5):
                await follower.refresh()

    logged = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert logged == ["keys cannot be read; the last keys stay valid"] * 2


async def test_what_is_lost_for_another_reason_is_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A database that is dropped is away first, and empty from then on."""
    ring, accounts = KeyRing(), Accounts(_KEY)
    troubles = [DependencyUnavailable("away"), LedgerEmpty("empty"), DependencyUnavailable("away")]
    async with PrincipalsFollower(ring=ring, accounts=accounts, poll=60.0) as follower:
        for accounts.trouble in troubles:
            for _ in range(5):
                await follower.refresh()

    said = [record.__dict__["reason"] for record in caplog.records]
    assert said == ["away", "empty"]


async def test_a_ledger_that_never_had_an_account_takes_no_key_away() -> None:
    ring, accounts = KeyRing(), Accounts(_KEY)
    accounts.number = 7
    async with PrincipalsFollower(ring=ring, accounts=accounts, poll=60.0) as follower:
        accounts.keys, accounts.number = (), 0
        await follower.refresh()
        beside_a_new_one = knows(ring)
        is_reached, emptiness = follower.is_reached, follower.emptiness
        accounts.change()
        await follower.refresh()

        assert beside_a_new_one
        assert not is_reached
        assert "restore" in emptiness
        assert not knows(ring)
        assert not follower.emptiness


async def test_a_new_ledger_without_keys_is_loaded_by_who_knows_none() -> None:
    async with PrincipalsFollower(ring=KeyRing(), accounts=Accounts(), poll=60.0) as follower:
        assert follower.is_loaded
        assert follower.is_reached
