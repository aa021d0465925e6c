"""A state Redis that lost its data has back what was published and drained, from the ledger."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis
from typing_extensions import override

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.published import PublishedState, RecordedState
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.redis.connect import open_client
from sluicegate.gateway.redis.health import RedisHealthMonitor
from sluicegate.gateway.runtime import control_scripts
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Topic
from sluicegate.gateway.runtime.follower import RuntimeFollower, first_runtime
from sluicegate.gateway.runtime.recovery import LedgerRecovery
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from testing.valkey import Valkey
from testing.waiting import WAIT_LIMIT, eventually, until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey() as running:
        yield running


@pytest.fixture
async def redis(valkey: Valkey) -> AsyncIterator[Redis]:
    valkey.flush()
    client = connect(valkey.url, timeout=5.0)
    yield client
    await client.aclose()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "g.yaml").write_text("models:\n  m:\n    cache_ttl: 1\n")
    return Settings(data_dir=tmp_path, config=tmp_path / "config")


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with Ledger.create(database) as opened:
        yield opened


class LostLedger(PublishedState):
    """The record of a ledger that may be away."""

    def __init__(self, record: PublishedState) -> None:
        self._record = record
        self.is_away = False

    @override
    def newest(self, region: str) -> RecordedState:
        """Return what the ledger has, or fail."""
        return self._present().newest(region)

    @override
    def documents(self, region: str) -> list[str]:
        """Return what the ledger has, or fail."""
        return self._present().documents(region)

    @override
    def keep_documents(self, region: str, documents: Mapping[int, str]) -> None:
        """Keep them, or fail."""
        self._present().keep_documents(region, documents)

    @override
    def keep_drained(self, region: str, version: int, backends: Iterable[str]) -> None:
        """Keep them, or fail."""
        self._present().keep_drained(region, version, backends)

    def _present(self) -> PublishedState:
        if self.is_away:
            raise DependencyUnavailable("the ledger cannot be reached")
        return self._record


def recovery_of(redis: Redis, record: PublishedState) -> LedgerRecovery:
    return LedgerRecovery(control=Control(redis), record=record, region="")


def publisher_of(redis: Redis, ledger: Ledger, settings: Settings) -> Publisher:
    return Publisher(
        control=Control(redis),
        ledger=ledger,
        settings=settings,
        clock=lambda: 7.0,
        workers_timeout=0.1,
        recovery=recovery_of(redis, ledger.published),
    )


async def put(publisher: Publisher, ttl: int) -> int:
    """Publish a document that can be told by its `ttl`; return its generation."""
    text = f"models: {{m: {{cache_ttl: {ttl}}}}}"
    return (await publisher.put(text, if_match="", author="a")).generation


async def drain(redis: Redis, ledger: Ledger, backend: str) -> None:
    """Do what the operators' route does."""
    await Control(redis).drain(backend)
    await recovery_of(redis, ledger.published).reconcile()


def told(runtime: Runtime) -> tuple[int, float]:
    return runtime.generation, runtime.document.models["m"].cache_ttl


class Worker:
    """A worker that follows; `drains` is what it was told of drained backends, in order."""

    def __init__(
        self, redis: Redis, record: PublishedState, settings: Settings, first: Runtime
    ) -> None:
        self.store = RuntimeStore(first)
        self.drains: list[frozenset[str]] = []
        self.follower = RuntimeFollower(
            store=self.store,
            control=Control(redis),
            settings=settings,
            drains_changed=self.drains.append,
            recovery=recovery_of(redis, record),
            poll=0.05,
        )


async def start(redis: Redis, record: PublishedState, settings: Settings) -> Worker:
    first = await first_runtime(redis, settings, recovery_of(redis, record))
    return Worker(redis, record, settings, first)


async def test_drained_backends_stay_drained(
    redis: Redis, ledger: Ledger, settings: Settings, valkey: Valkey
) -> None:
    await drain(redis, ledger, "eu-0")
    worker = await start(redis, ledger.published, settings)

    async with worker.follower:
        valkey.flush()
        await eventually(lambda: is_drained(redis, "eu-0"))
        await drain(redis, ledger, "eu-1")
        await until(lambda: "eu-1" in worker.drains[-1], what="it follows")

    assert all("eu-0" in drained for drained in worker.drains)
    assert worker.drains[-1] == {"eu-0", "eu-1"}


async def is_followed(control: Control) -> bool:
    """Whether a worker gave a sign of life, and so looked at what is there."""
    return bool(await control.workers())


async def is_drained(redis: Redis, backend: str) -> bool:
    return backend in await Control(redis).drained()


async def test_running_and_restarted_workers_agree_on_the_document(
    redis: Redis, ledger: Ledger, settings: Settings, valkey: Valkey
) -> None:
    publisher = publisher_of(redis, ledger, settings)
    await publisher.start(asyncio.Event())
    await put(publisher, 9)
    running = await start(redis, ledger.published, settings)

    async with running.follower:
        valkey.flush()
        restarted = await start(redis, ledger.published, settings)

        assert told(restarted.store.current) == told(running.store.current) == (2, 9.0)


async def test_history_is_kept_and_generations_never_go_backwards(
    redis: Redis, ledger: Ledger, settings: Settings, valkey: Valkey
) -> None:
    publisher = publisher_of(redis, ledger, settings)
    await publisher.start(asyncio.Event())
    await put(publisher, 9)
    before = await Control(redis).history()
    valkey.flush()

    restarted = publisher_of(redis, ledger, settings)
    await restarted.start(asyncio.Event())
    kept = await Control(redis).history()
    valkey.flush()
    generation = await put(publisher, 10)
    valkey.flush()
    back = await publisher.rollback(2, author="a")

    assert kept == before
    assert (generation, back.generation) == (3, 4)
    assert [entry.generation for entry in await Control(redis).history()] == [4, 3, 2, 1]


async def copied(redis: Redis) -> dict[bytes, bytes]:
    """Return what Redis has now."""
    names = [name async for name in redis.scan_iter(match="sg:{config}:*")]
    return {name: await redis.dump(name) or b"" for name in names}


async def replace(
    redis: Redis, older: Mapping[bytes, bytes], *changes: tuple[str | bytes | int, ...]
) -> None:
    """Do what a Redis does that starts with an older file: nobody sees anything in between.

    `changes` are commands that it gets before anybody looks.
    """
    async with redis.pipeline(transaction=True) as together:
        together.execute_command("FLUSHALL")
        for name, value in older.items():
            together.execute_command("RESTORE", name, 0, value)
        for change in changes:
            together.execute_command(*change)
        await together.execute()


async def test_what_was_purged_stays_purged_where_redis_has_an_older_state(
    redis: Redis, ledger: Ledger, settings: Settings
) -> None:
    control = Control(redis)
    await control.raise_epoch("tenant:a")
    worker = await start(redis, ledger.published, settings)
    taken: list[tuple[str, int]] = []
    worker.store.on_swap(
        lambda runtime: taken.append((runtime.purge_history, runtime.epochs.get("tenant:a", 0)))
    )

    async with worker.follower:
        older = await copied(redis)
        await control.raise_epoch("tenant:a")
        await until(lambda: len(taken) == 1, what="the purge is taken")
        await replace(redis, older)
        await until(lambda: len(taken) == 2, what="what was lost is noticed")
        purged = await control.raise_epoch("tenant:a")
        settled = await control.wait_for_workers(Topic.EPOCHS, purged, within=WAIT_LIMIT)
    restarted = await start(redis, ledger.published, settings)

    before, after = taken[0][0], {history for history, _ in taken[1:]}
    assert len(after) == 1
    assert before not in after
    assert restarted.store.current.purge_history in after
    assert set(settled.values()) == {"ok"}


def purge_of(name: str) -> tuple[str | int, ...]:
    """Return the command of `Control.raise_epoch`."""
    keys = "sg:{config}:version:epochs", "sg:{config}:epochs"
    return "EVAL", control_scripts.TOUCH, 2, *keys, "sg:{config}:changed", "epochs", name


@pytest.mark.parametrize("name", ["tenant:a", "tenant:b"])
async def test_a_lost_purge_is_not_undone_by_the_next_one(
    redis: Redis, ledger: Ledger, settings: Settings, name: str
) -> None:
    control = Control(redis)
    first = await control.raise_epoch("tenant:a")
    worker = await start(redis, ledger.published, settings)

    async with worker.follower:
        older, before = await copied(redis), worker.store.current.purge_history
        lost = await control.raise_epoch("tenant:a")
        await control.wait_for_workers(Topic.EPOCHS, lost, within=WAIT_LIMIT)
        await replace(redis, older, purge_of(name))
        settled = await control.wait_for_workers(Topic.EPOCHS, lost + 1, within=WAIT_LIMIT)

    purged, taken = (await control.epochs())[name], worker.store.current
    assert set(settled.values()) == {"ok"}
    assert dict(taken.epochs) == {"tenant:a": first} | {name: purged}
    assert purged > lost
    assert (taken.purge_history == before) == (name == "tenant:a")


async def test_a_purge_that_was_lost_twice_is_not_undone(
    redis: Redis, ledger: Ledger, settings: Settings
) -> None:
    control = Control(redis)
    worker = await start(redis, ledger.published, settings)
    histories: list[str] = []
    worker.store.on_swap(lambda runtime: histories.append(runtime.purge_history))

    async with worker.follower:
        older, first = await copied(redis), worker.store.current.purge_history
        lost = await control.raise_epoch("tenant:a")
        await control.wait_for_workers(Topic.EPOCHS, lost, within=WAIT_LIMIT)
        await replace(redis, older)
        await until(lambda: histories[-1] != first, what="the loss is noticed")
        noticed = len(histories)
        await replace(redis, older, purge_of("tenant:b"))
        await until(lambda: "tenant:b" in worker.store.current.epochs, what="the next purge")

    assert first not in histories[noticed:]


async def test_a_document_with_the_generation_of_a_lost_one_is_taken(
    redis: Redis, ledger: Ledger, settings: Settings
) -> None:
    publisher = publisher_of(redis, ledger, settings)
    await put(publisher, 8)
    worker = await start(redis, ledger.published, settings)

    async with worker.follower:
        older = await copied(redis)
        await put(publisher, 9)
        await Control(redis).wait_for_workers(Topic.CONFIG, 2, within=WAIT_LIMIT)
        active = await Control(redis).active()
        assert active is not None
        text = "models: {m: {cache_ttl: 10}}"
        sources = (msgspec.structs.replace(active.sources[0], text=text),)
        other = msgspec.structs.replace(active, sources=sources, time=active.time + 1)
        await replace(
            redis,
            older,
            ("SET", "sg:{config}:active", msgspec.msgpack.encode(other)),
            ("SET", "sg:{config}:generation", other.generation),
        )
        settled = await Control(redis).wait_for_workers(Topic.CONFIG, 2, within=WAIT_LIMIT)

    assert set(settled.values()) == {"ok"}
    assert told(worker.store.current) == (2, 10.0)


async def test_a_drain_with_the_number_of_a_lost_one_is_taken(
    redis: Redis, ledger: Ledger, settings: Settings
) -> None:
    control = Control(redis)
    worker = await start(redis, ledger.published, settings)

    async with worker.follower:
        older = await copied(redis)
        version = await control.drain("eu-0")
        await control.wait_for_workers(Topic.DRAINS, version, within=WAIT_LIMIT)
        await replace(
            redis,
            older,
            ("SADD", "sg:{config}:drained", "eu-1"),
            ("INCR", "sg:{config}:version:drains"),
        )
        settled = await control.wait_for_workers(Topic.DRAINS, version, within=WAIT_LIMIT)

    assert set(settled.values()) == {"ok"}
    assert worker.drains[-1] == {"eu-1"}


async def test_an_older_state_is_brought_up_to_date(
    redis: Redis, ledger: Ledger, settings: Settings
) -> None:
    publisher = publisher_of(redis, ledger, settings)
    await put(publisher, 8)
    older = await copied(redis)
    await put(publisher, 9)
    await drain(redis, ledger, "eu-0")
    await replace(redis, older)

    await recovery_of(redis, ledger.published).reconcile()

    active = await Control(redis).active()
    assert active is not None
    assert active.generation == 2
    assert await is_drained(redis, "eu-0")


async def test_one_alone_of_many_publishes_again(
    redis: Redis, ledger: Ledger, settings: Settings, valkey: Valkey
) -> None:
    await put(publisher_of(redis, ledger, settings), 9)
    await drain(redis, ledger, "eu-0")
    control = Control(redis)
    history, drains = await control.history(), (await control.versions()).drains
    valkey.flush()

    restored = await asyncio.gather(
        *(control.restore_state(history, drains, ["eu-0"]) for _ in range(8))
    )

    assert restored.count(True) == 1
    assert [entry.generation for entry in await control.history()] == [1]


async def test_a_worker_that_starts_while_redis_is_away_goes_by_the_ledger(
    redis: Redis, ledger: Ledger, settings: Settings, tmp_path: Path
) -> None:
    await put(publisher_of(redis, ledger, settings), 9)
    await drain(redis, ledger, "eu-0")
    away = connect(f"unix://{tmp_path}/none", timeout=0.2)

    worker = await start(away, ledger.published, settings)
    async with worker.follower:
        assert told(worker.store.current) == (1, 9.0)
        assert worker.drains == [{"eu-0"}]
    await away.aclose()


async def test_without_the_ledger_a_running_worker_keeps_what_it_has_until_that_is_back(
    redis: Redis, ledger: Ledger, settings: Settings, valkey: Valkey
) -> None:
    await put(publisher_of(redis, ledger, settings), 9)
    await drain(redis, ledger, "eu-0")
    record = LostLedger(ledger.published)
    worker = await start(redis, record, settings)
    control = Control(redis)

    async with worker.follower:
        record.is_away = True
        valkey.flush()
        await eventually(lambda: is_followed(control))
        assert told(worker.store.current) == (1, 9.0)

        record.is_away = False
        await eventually(lambda: is_drained(redis, "eu-0"))

    assert told(worker.store.current) == (1, 9.0)
    assert (await control.versions()).config == 1
    assert set(worker.drains) == {frozenset({"eu-0"})}


async def test_who_follows_the_ledger_publishes_again_by_itself(
    redis: Redis, ledger: Ledger, settings: Settings, valkey: Valkey
) -> None:
    publisher = publisher_of(redis, ledger, settings)
    await put(publisher, 9)
    stop = asyncio.Event()
    following = asyncio.create_task(recovery_of(redis, ledger.published).follow(stop))

    valkey.flush()
    control = Control(redis)

    async def is_published() -> bool:
        return (await control.versions()).config == 1

    await eventually(is_published)
    stop.set()
    await following


async def test_what_an_older_version_published_is_kept_from_then_on(
    redis: Redis, ledger: Ledger, settings: Settings
) -> None:
    without = Publisher(
        control=Control(redis),
        ledger=ledger,
        settings=settings,
        clock=lambda: 7.0,
        workers_timeout=0.1,
    )
    await put(without, 8)
    await put(without, 9)

    await recovery_of(redis, ledger.published).reconcile()

    assert ledger.published.newest("").generation == 2
    assert len(ledger.published.documents("")) == 2


async def test_regions_that_share_a_ledger_keep_their_own(ledger: Ledger) -> None:
    ledger.published.keep_documents("eu", {3: "three"})
    ledger.published.keep_drained("us", 4, ["b", "a"])

    assert ledger.published.newest("eu") == RecordedState(generation=3)
    assert ledger.published.newest("us") == RecordedState(drains=4, drained=frozenset("ab"))


async def test_an_older_version_of_what_is_drained_is_not_kept(ledger: Ledger) -> None:
    ledger.published.keep_drained("", 4, ["a"])
    ledger.published.keep_drained("", 3, ["b"])

    assert ledger.published.newest("").drained == {"a"}


async def test_the_last_fifty_documents_are_kept(ledger: Ledger) -> None:
    for generation in range(1, 61):
        ledger.published.keep_documents("", {generation: str(generation)})

    assert ledger.published.documents("") == [str(number) for number in range(60, 10, -1)]


async def test_a_watch_tells_when_a_redis_is_away_and_back() -> None:
    with Valkey() as own:
        watch = RedisHealthMonitor(open_client(own.url, timeout=0.2, slow=0.2), interval=0.02)
        async with watch:
            own.pause()
            await until(lambda: not watch.is_reachable, what="it is away")
            own.resume()
            await until(lambda: watch.is_reachable, what="it is back")
