"""Operators' keys in memory: known ones outlive the ledger for a time, unknown ones wait."""

import pytest

from sluicegate.gateway.auth.keys import hash_key, new_key
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.operators import ValidOperatorKey
from sluicegate.gateway.operations.operator_keys import OperatorKeys
from sluicegate.gateway.operations.operators import Operator, Role
from testing.waiting import eventually

pytestmark = pytest.mark.anyio
ALICE = Operator("alice", frozenset({Role.VIEWER}))


class Store:
    """Has keys that a test sets, or is away."""

    def __init__(self, *keys: ValidOperatorKey) -> None:
        self.keys = list(keys)
        self.is_away = False

    def valid_keys(self) -> list[ValidOperatorKey]:
        if self.is_away:
            raise DependencyUnavailable("the ledger cannot be reached")
        return self.keys


class Bench:
    """A store with the key of Alice, and clocks that a test sets."""

    def __init__(self) -> None:
        self.key = new_key("op")
        self.store = Store(self.valid(self.key))
        self.now = 100.0
        self.keys = OperatorKeys(
            store=self.store,
            poll=0.01,
            kept=60.0,
            monotonic=lambda: self.now,
            wall=lambda: int(self.now * 1e9),
        )

    def valid(
        self, key: str, *, roles: tuple[str, ...] = ("viewer",), expires: int | None = None
    ) -> ValidOperatorKey:
        return ValidOperatorKey(
            key_hash=hash_key(key), operator="alice", roles=roles, expires=expires
        )


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_key_is_found_and_another_is_nobodys(bench: Bench) -> None:
    await bench.keys.refresh()

    assert await bench.keys.find(bench.key) == ALICE
    assert await bench.keys.find(new_key("op")) is None
    assert await bench.keys.find("") is None


async def test_changes_are_followed_while_entered(bench: Bench) -> None:
    async def is_alice() -> bool:
        return await bench.keys.find(bench.key) == ALICE

    async def is_nobody() -> bool:
        bench.now += 0.001
        return await bench.keys.find(bench.key) is None

    bench.now = 1.0
    bench.keys = OperatorKeys(store=bench.store, poll=0.01, monotonic=lambda: bench.now)
    async with bench.keys:
        bench.store.is_away = False
        await bench.keys.refresh()
        assert await is_alice()
        bench.store.keys = []
        await eventually(is_nobody)


async def test_known_keys_stay_for_a_time_while_the_ledger_is_away(bench: Bench) -> None:
    await bench.keys.refresh()
    bench.store.is_away = True

    bench.now += 60.0
    await bench.keys.refresh()

    assert await bench.keys.find(bench.key) == ALICE
    bench.now += 0.1
    with pytest.raises(DependencyUnavailable):
        await bench.keys.find(bench.key)


async def test_unknown_keys_are_refused_for_now_while_the_ledger_is_away(bench: Bench) -> None:
    bench.store.is_away = True
    await bench.keys.refresh()

    with pytest.raises(DependencyUnavailable) as refused:
        await bench.keys.find(new_key("op"))

    assert refused.value.retry_after == 1.0
    assert await bench.keys.find("op-is-no-key-of-ours") is None
    assert await bench.keys.find("op-\udcffx" + new_key("op")) is None
    bench.store.is_away = False
    await bench.keys.refresh()
    assert await bench.keys.find(new_key("op")) is None


async def test_a_key_expires_also_while_the_ledger_is_away(bench: Bench) -> None:
    bench.store.keys = [bench.valid(bench.key, expires=int(bench.now * 1e9) + 1)]
    await bench.keys.refresh()
    bench.store.is_away = True

    assert await bench.keys.find(bench.key) == ALICE
    bench.now += 1.0
    assert await bench.keys.find(bench.key) is None


async def test_roles_of_a_later_version_are_left_out(bench: Bench) -> None:
    bench.store.keys = [bench.valid(bench.key, roles=("viewer", "astronaut"))]
    await bench.keys.refresh()

    assert await bench.keys.find(bench.key) == ALICE
