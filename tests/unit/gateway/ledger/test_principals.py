"""Workers that read what changed know the same keys as one that reads all."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy

from sluicegate.gateway.app.principals import PrincipalsFollower
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.errors import AuthenticationFailed
from sluicegate.gateway.ledger import principals as reading, schema
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.principals import record_change
from sluicegate.gateway.ledger.store import to_datetime
from sluicegate.gateway.ledger.types import KeyBounds, KeySpec
from sluicegate.gateway.types import Principal, Rule
from testing.waiting import wait_until
from tests.support.backups import back_up
from tests.support.ledgers import Clock, principals

pytestmark = pytest.mark.anyio
RULE = Rule(name="minute", unit="requests", capacity=10, window=60.0)
HOUR = 3600.0
SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""For what depends on no database."""


class Worker:
    """Follows the keys of a ledger, as a gateway worker does."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self.ring = KeyRing()
        self.follower = PrincipalsFollower(
            ring=self.ring, accounts=ledger.principals, poll=HOUR, wall=clock
        )

    async def find(self, text: str) -> Principal | None:
        """Follow, and return the principal of a key."""
        await self.follower.read_again()
        return self.ring.find(text.encode())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(database: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.create(database, clock=clock) as opened:
        opened.accounts.create_tenant("acme")
        yield opened


@pytest.fixture
async def worker(ledger: Ledger, clock: Clock) -> Worker:
    made = Worker(ledger, clock)
    await made.follower.read_again()
    return made


def text_of(number: int) -> str:
    return f"sk-a-key-of-the-tests-{number}"


def add(ledger: Ledger, number: int, tenant: str = "acme") -> str:
    return ledger.accounts.create_key(tenant, key_hash=hash_key(text_of(number))).id


def statement(url: str, text: str) -> None:
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(text))
    engine.dispose()


@SQLITE
async def test_of_many_keys_only_the_changed_one_is_read(ledger: Ledger) -> None:
    for number in range(20):
        add(ledger, number)
    before = ledger.principals.version()

    key = add(ledger, 20)

    changes = ledger.principals.changes(before)
    assert changes is not None
    assert not changes.is_everything
    assert changes.keys == {key}
    assert [one.key for _, one in changes.principals] == [key]
    assert ledger.principals.changes(changes.version) is None


@SQLITE
async def test_each_change_of_a_key_reaches_a_worker(ledger: Ledger, worker: Worker) -> None:
    key = add(ledger, 1)
    first = await worker.find(text_of(1))

    ledger.accounts.set_key_limits(key, [RULE])
    limited = await worker.find(text_of(1))
    ledger.accounts.set_key_bounds(key, KeyBounds(origins=("https://a.example",)))
    bounded = await worker.find(text_of(1))
    origins = frozenset(worker.ring.origins)
    ledger.accounts.revoke(key)

    assert first is not None
    assert limited is not None
    assert limited.key_rules == (RULE,)
    assert bounded is not None
    assert bounded.origins == origins == {"https://a.example"}
    assert await worker.find(text_of(1)) is None
    assert (set(worker.ring.origins), len(worker.ring)) == (set(), 0)


@SQLITE
async def test_limits_of_a_tenant_reach_all_of_its_keys_and_no_other(
    ledger: Ledger, worker: Worker
) -> None:
    ledger.accounts.create_tenant("beta")
    for number in range(3):
        add(ledger, number)
    add(ledger, 3, "beta")
    untouched = await worker.find(text_of(3))

    ledger.accounts.set_limits("acme", [RULE])

    found = [await worker.find(text_of(number)) for number in range(3)]
    assert all(one is not None and one.tenant_rules == (RULE,) for one in found)
    assert await worker.find(text_of(3)) is untouched


@SQLITE
async def test_texts_that_a_rotation_ends_are_not_found(
    ledger: Ledger, worker: Worker, clock: Clock
) -> None:
    key = add(ledger, 1)
    hashes = {number: hash_key(text_of(number)) for number in range(1, 4)}
    ledger.accounts.rotate(key, key_hash=hashes[2], former_hash=hashes[1], keep=60)
    kept = [await worker.find(text_of(number)) for number in (1, 2)]
    ledger.accounts.rotate(key, key_hash=hashes[3], former_hash=hashes[2], keep=60)

    after = [await worker.find(text_of(number)) for number in (1, 2, 3)]
    clock.advance(61)

    assert None not in kept
    assert [one is not None for one in after] == [False, True, True]
    assert await worker.find(text_of(2)) is None
    assert await worker.find(text_of(3)) is not None


@SQLITE
async def test_a_key_expires_without_a_change_and_comes_back_with_the_right_time(
    ledger: Ledger, worker: Worker, clock: Clock
) -> None:
    ends = to_datetime(clock.now) + timedelta(seconds=60)
    ledger.accounts.create_key("acme", key_hash=hash_key(text_of(1)), expires=ends)
    before = await worker.find(text_of(1))

    clock.advance(3600)
    late = await worker.find(text_of(1))
    clock.advance(-3600)

    assert before is not None
    assert late is None
    assert await worker.find(text_of(1)) is not None


async def test_keys_made_at_once_are_one_change(ledger: Ledger, worker: Worker) -> None:
    before = ledger.principals.version()
    specs = [KeySpec(tenant=f"tenant-{n % 3}", key_hash=hash_key(text_of(n))) for n in range(600)]

    made = ledger.accounts.create_keys(specs, new_tenants=True)

    changes = ledger.principals.changes(before)
    assert changes is not None
    assert changes.version.number == before.number + 1
    assert changes.keys == {key.id for key in made}
    found = await worker.find(text_of(599))
    assert found is not None
    assert (found.tenant, found.key) == ("tenant-2", made[599].id)
    assert len(worker.ring) == 600


@SQLITE
async def test_all_are_read_in_pages(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PAGE", 7)
    for count in (7, 8):
        specs = [KeySpec(tenant="acme", key_hash=f"{count}-{n}") for n in range(count)]
        ledger.accounts.create_keys(specs)

    assert len(principals(ledger)) == 15


async def test_a_change_of_the_version_before_has_all_keys_read(
    database: str, ledger: Ledger, worker: Worker
) -> None:
    """It counts its changes, but does not say what they were."""
    add(ledger, 1)
    await worker.find(text_of(1))

    statement(database, "UPDATE keys SET revoked = 1")
    statement(database, "UPDATE changes SET count = count + 1 WHERE subject = 'accounts'")
    add(ledger, 2)

    assert await worker.find(text_of(1)) is None
    assert await worker.find(text_of(2)) is not None


@SQLITE
async def test_a_worker_that_missed_more_than_is_kept_reads_all(
    ledger: Ledger, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "KEPT_CHANGES", 3)
    key = add(ledger, 0)
    await worker.find(text_of(0))

    ledger.accounts.revoke(key)
    for number in range(1, 5):
        add(ledger, number)

    assert [await worker.find(text_of(n)) is not None for n in range(5)] == [False, *[True] * 4]


@pytest.mark.parametrize("later", [0, 2, 5])
async def test_a_restored_ledger_is_read_whatever_its_number_is(
    database: str, ledger: Ledger, worker: Worker, clock: Clock, tmp_path: Path, later: int
) -> None:
    add(ledger, 0)
    restore = back_up(database, tmp_path)
    key = add(ledger, 1)
    ledger.accounts.set_key_limits(key, [RULE])
    await worker.find(text_of(1))
    ledger.close()

    restore()

    with Ledger.create(database, clock=clock) as again:
        for number in range(later):
            again.accounts.create_tenant(f"tenant-{number}")
        worker.follower._accounts = again.principals
        assert await worker.find(text_of(1)) is None
        assert await worker.find(text_of(0)) is not None


@SQLITE
async def test_another_ledger_in_its_place_is_read(
    ledger: Ledger, worker: Worker, clock: Clock, tmp_path: Path
) -> None:
    add(ledger, 0)
    await worker.find(text_of(0))

    with Ledger.create(f"sqlite:///{tmp_path / 'other.db'}", clock=clock) as other:
        other.accounts.create_tenant("beta")
        add(other, 1, "beta")
        assert other.principals.version().number == ledger.principals.version().number
        worker.follower._accounts = other.principals

        assert await worker.find(text_of(0)) is None
        assert await worker.find(text_of(1)) is not None


async def test_changes_become_visible_in_the_order_of_their_numbers(
    database: str, ledger: Ledger, worker: Worker
) -> None:
    """The second change waits for the first: none can be skipped by who read up to the second."""
    first, second = add(ledger, 1), add(ledger, 2)
    await worker.find(text_of(1))
    store = ledger.accounts._store
    revoking = threading.Thread(target=ledger.accounts.revoke, args=(second,))
    with store.writing() as connection:
        connection.execute(schema.keys.update().where(schema.keys.c.id == first).values(revoked=1))
        record_change(store, connection, keys=[first])
        revoking.start()
        if database.startswith("postgresql"):
            await asyncio.to_thread(wait_until, lambda: waits_for_a_lock(database))
        during = [await worker.find(text_of(number)) is not None for number in (1, 2)]
    await asyncio.to_thread(revoking.join)

    assert during == [True, True]
    assert [await worker.find(text_of(number)) for number in (1, 2)] == [None, None]


def waits_for_a_lock(url: str) -> bool:
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        found = connection.execute(sqlalchemy.text(query)).scalar_one()
    engine.dispose()
    return bool(found)


async def test_a_revoked_key_is_never_found_by_who_reads_after_it_was_revoked(
    ledger: Ledger, worker: Worker
) -> None:
    keys = [key.id for key in ledger.accounts.create_keys(specs_of(range(30)))]
    await worker.find(text_of(0))
    done: list[int] = []

    def change(numbers: range) -> None:
        for number in numbers:
            ledger.accounts.set_key_limits(keys[number], [RULE])
            ledger.accounts.revoke(keys[number])
            done.append(number)

    writers = [threading.Thread(target=change, args=(range(start, 30, 3),)) for start in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        before = list(done)
        await worker.follower.read_again()
        assert not [n for n in before if worker.ring.find(text_of(n).encode()) is not None]
    await worker.follower.read_again()

    assert len(done) == 30
    assert len(worker.ring) == 0


def specs_of(numbers: range) -> list[KeySpec]:
    return [KeySpec(tenant="acme", key_hash=hash_key(text_of(n))) for n in numbers]


async def test_a_worker_that_follows_knows_what_one_that_starts_knows(
    ledger: Ledger, worker: Worker, clock: Clock
) -> None:
    chooser = random.Random(1)
    keys: list[str] = []
    texts: dict[str, int] = {}

    def make() -> None:
        texts[key := add(ledger, 1000 + len(keys), chooser.choice(["acme", "beta"]))] = len(keys)
        keys.append(key)

    def rotate() -> None:
        key = chooser.choice(keys)
        number = texts[key]
        old, new = (hash_key(text_of(1000 + n)) for n in (number, number + 10_000))
        keep = chooser.choice([0.0, 5.0, 50.0])
        with contextlib.suppress(AuthenticationFailed):  # of a key that was revoked
            ledger.accounts.rotate(key, key_hash=new, former_hash=old, keep=keep)
            texts[key] = number + 10_000

    def wait() -> None:
        clock.advance(chooser.choice([1, 10, -30]))

    ledger.accounts.create_tenant("beta")
    make()
    changes: list[Callable[[], object]] = [
        make,
        make,
        rotate,
        wait,
        lambda: ledger.accounts.revoke(chooser.choice(keys)),
        lambda: ledger.accounts.set_limits(
            chooser.choice(["acme", "beta"]), chooser.choice([[], [RULE]])
        ),
        lambda: ledger.accounts.set_key_bounds(
            chooser.choice(keys), KeyBounds(routes=chooser.choice([None, ("/v1/embed",)]))
        ),
    ]
    for _ in range(20):
        for _ in range(chooser.randrange(4)):
            chooser.choice(changes)()
        await worker.follower.read_again()

        expected = KeyRing(principals(ledger))
        assert dict(worker.ring._by_digest) == dict(expected._by_digest)
        assert worker.ring.has_bounds == expected.has_bounds
