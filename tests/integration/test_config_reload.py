"""Configuration that changes while workers serve: real Valkey, a publisher, followers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis
from typing_extensions import override

from sluicegate.gateway.config.sources import DocumentSource
from sluicegate.gateway.errors import (
    ConfigurationError,
    Conflict,
    DependencyUnavailable,
    NotFound,
    PreconditionFailed,
)
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.generations import etag
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Published, Topic
from sluicegate.gateway.runtime.follower import RuntimeFollower, first_runtime, identity
from sluicegate.gateway.runtime.models import ModelsFollower
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from testing.valkey import Valkey
from testing.waiting import eventually, until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey() as running:
        yield running


@pytest.fixture
async def redis(valkey: Valkey) -> AsyncIterator[Redis]:
    valkey.flush()
    client = connect(valkey.url, timeout=60.0)
    yield client
    await client.aclose()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "config").mkdir()
    made = Settings(data_dir=tmp_path, config=tmp_path / "config")
    write(made, ttl=1)
    return made


@pytest.fixture
def publisher(redis: Redis, settings: Settings) -> Iterator[Publisher]:
    with Ledger.create(settings.ledger) as ledger:
        control = Control(redis)
        yield Publisher(
            control=control, ledger=ledger, settings=settings, clock=lambda: 7.0, workers_timeout=2
        )


def write(settings: Settings, *, ttl: object) -> None:
    """Write a document that can be told by its `ttl`."""
    (settings.config / "g.yaml").write_text(f"models:\n  m:\n    cache_ttl: {ttl}\n")


def ttl(runtime: Runtime) -> float:
    return runtime.document.models["m"].cache_ttl


class Worker:
    """A worker that follows; `swaps` are the generations it took."""

    def __init__(self, redis: Redis, settings: Settings, store: RuntimeStore) -> None:
        self.store = store
        self.settings = settings
        self.swaps: list[int] = []
        self.accounts = 0
        self.trouble: DependencyUnavailable | None = None
        store.on_swap(lambda runtime: self.swaps.append(runtime.generation))
        self.follower = RuntimeFollower(
            store=store,
            control=Control(redis),
            settings=settings,
            report=lambda: b'{"cache": 1}',
            actions={Topic.ACCOUNTS: self._accounts_changed},
        )

    async def _accounts_changed(self) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.accounts += 1


@contextlib.asynccontextmanager
async def following(redis: Redis, settings: Settings, name: str = "0") -> AsyncIterator[Worker]:
    own = msgspec.structs.replace(settings, worker=name)
    worker = Worker(redis, own, RuntimeStore(await first_runtime(redis, own)))
    async with worker.follower:
        yield worker


async def test_a_worker_starts_from_the_folder_when_nothing_is_published(
    redis: Redis, settings: Settings
) -> None:
    runtime = await first_runtime(redis, settings)

    assert (runtime.generation, ttl(runtime)) == (0, 1)


async def test_a_worker_starts_from_what_is_published_even_if_the_folder_is_broken(
    redis: Redis, settings: Settings, publisher: Publisher
) -> None:
    await publisher.reload(author="a")
    write(settings, ttl="broken")

    runtime = await first_runtime(redis, settings)

    assert (runtime.generation, ttl(runtime)) == (1, 1)


async def test_a_worker_starts_without_redis(settings: Settings, tmp_path: Path) -> None:
    away = connect(f"unix://{tmp_path}/none", timeout=0.2)
    store = RuntimeStore(await first_runtime(away, settings))

    async with RuntimeFollower(store=store, control=Control(away), settings=settings):
        assert ttl(store.current) == 1

    await away.aclose()


async def test_a_worker_reports_what_is_new_before_its_next_turn(
    redis: Redis, settings: Settings
) -> None:
    store, reports = RuntimeStore(await first_runtime(redis, settings)), [b"{}"]
    follower = RuntimeFollower(
        store=store,
        control=Control(redis),
        settings=settings,
        report=lambda: reports[-1],
        poll=3600.0,
    )

    async def is_reported() -> bool:
        return reports[-1] in (await Control(redis).reports()).values()

    async with follower:
        reports.append(b'{"new": 1}')
        follower.report_soon()
        await eventually(is_reported)


async def test_a_reload_is_live_in_every_worker_when_it_returns(
    redis: Redis, settings: Settings, publisher: Publisher
) -> None:
    async with following(redis, settings, "0") as one, following(redis, settings, "1") as two:
        await publisher.reload(author="a")
        write(settings, ttl=2)

        change = await publisher.reload(author="a")

        assert change.live
        assert change.changed
        assert set(change.workers) == {identity(one.settings), identity(two.settings)}
        assert (ttl(one.store.current), ttl(two.store.current)) == (2, 2)
        assert one.swaps == [1, 2]


async def test_a_broken_folder_is_refused_with_its_place_and_changes_nothing(
    redis: Redis, settings: Settings, publisher: Publisher
) -> None:
    async with following(redis, settings) as worker:
        await publisher.reload(author="a")
        write(settings, ttl="soon")

        with pytest.raises(ConfigurationError) as caught:
            await publisher.reload(author="a")

        assert caught.value.file == str(settings.config / "g.yaml")
        assert (caught.value.line, caught.value.field) == (3, "models.m.cache_ttl")
        assert worker.swaps == [1]
        active = await Control(redis).active()
        assert active is not None
        assert active.generation == 1


async def test_a_reload_of_an_unchanged_folder_makes_no_generation(
    redis: Redis, settings: Settings, publisher: Publisher
) -> None:
    first = await publisher.reload(author="a")
    second = await publisher.reload(author="a")

    assert (first.changed, second.changed) == (True, False)
    assert first.generation == second.generation


async def test_an_edit_while_nobody_ran_is_published_at_the_start(
    redis: Redis, settings: Settings, publisher: Publisher
) -> None:
    await publisher.start(asyncio.Event())
    write(settings, ttl=5)

    await publisher.start(asyncio.Event())

    active = await Control(redis).active()
    assert active is not None
    assert (active.generation, active.author) == (2, "start")


async def test_a_document_put_by_hand_outlives_a_restart_until_the_folder_changes(
    redis: Redis, settings: Settings, publisher: Publisher
) -> None:
    await publisher.start(asyncio.Event())
    await publisher.put("models: {m: {cache_ttl: 9}}", if_match="", author="a")

    await publisher.start(asyncio.Event())
    assert ttl(await first_runtime(redis, settings)) == 9

    write(settings, ttl=3)
    await publisher.start(asyncio.Event())
    assert ttl(await first_runtime(redis, settings)) == 3


async def test_a_put_on_top_of_another_version_is_refused(
    redis: Redis, settings: Settings, publisher: Publisher
) -> None:
    await publisher.start(asyncio.Event())
    first = await Control(redis).active()
    assert first is not None
    await publisher.put("models: {m: {}}", if_match=etag(first), author="a")

    with pytest.raises(PreconditionFailed):
        await publisher.put("models: {n: {}}", if_match=etag(first), author="b")

    assert (await first_runtime(redis, settings)).document.models.keys() == {"m"}


async def test_two_publications_at_once_do_not_overwrite_each_other(redis: Redis) -> None:
    control = Control(redis)
    one = Published(generation=1, origin=1, digest="a", sources=(), author="a", reason="", time=0.0)
    other = msgspec.structs.replace(one, author="b")

    taken = await asyncio.gather(control.publish(one), control.publish(other))

    assert sorted(taken) == [False, True]
    assert len(await control.history()) == 1


async def test_a_publication_that_lost_is_a_conflict(
    redis: Redis, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publisher.start(asyncio.Event())
    active = await Control(redis).active()
    assert active is not None

    async def outdated(_: Control) -> Published:
        return msgspec.structs.replace(active, generation=0)

    monkeypatch.setattr(Control, "active", outdated)

    with pytest.raises(Conflict):
        await publisher.put("models: {}", if_match="", author="a")


async def test_a_rollback_goes_back_a_document_each_time(
    redis: Redis, settings: Settings, publisher: Publisher
) -> None:
    for value in (1, 2, 3):
        write(settings, ttl=value)
        await publisher.reload(author="a")

    seen = []
    for _ in range(2):
        change = await publisher.rollback(None, author="a")
        seen.append((change.generation, ttl(await first_runtime(redis, settings))))

    assert seen == [(4, 2.0), (5, 1.0)]
    with pytest.raises(NotFound):
        await publisher.rollback(None, author="a")
    change = await publisher.rollback(3, author="a")
    assert (change.generation, ttl(await first_runtime(redis, settings))) == (6, 3.0)


async def test_a_worker_that_cannot_take_a_document_says_why_and_keeps_its_own(
    redis: Redis, settings: Settings, publisher: Publisher
) -> None:
    async with following(redis, settings) as worker:
        await publisher.reload(author="a")

        async def refuse(_: Runtime) -> None:
            raise DependencyUnavailable("its backend does not answer")

        worker.store.on_prepare(refuse)
        write(settings, ttl=2)

        change = await publisher.reload(author="a")

        assert not change.live
        assert change.workers == {identity(worker.settings): "its backend does not answer"}
        assert ttl(worker.store.current) == 1


async def test_a_worker_that_stopped_is_not_waited_for(
    redis: Redis, settings: Settings, publisher: Publisher
) -> None:
    async with following(redis, settings):
        pass

    change = await publisher.reload(author="a")

    assert (change.live, change.workers) == (True, {})


async def test_a_purge_reaches_every_worker(redis: Redis, settings: Settings) -> None:
    control = Control(redis)
    async with following(redis, settings, "0") as one, following(redis, settings, "1") as two:
        version = await control.raise_epoch("model:m")

        workers = await control.wait_for_workers(Topic.EPOCHS, version, within=60.0)

        assert set(workers.values()) == {"ok"}
        assert [w.store.current.epochs for w in (one, two)] == [{"model:m": version}] * 2


async def test_a_purge_and_a_reload_do_not_undo_each_other(
    redis: Redis, settings: Settings, publisher: Publisher
) -> None:
    control = Control(redis)
    async with following(redis, settings) as worker:
        await control.raise_epoch("tenant:t")
        await publisher.reload(author="a")
        version = await control.raise_epoch("tenant:t")
        await control.wait_for_workers(Topic.EPOCHS, version, within=60.0)

        current = worker.store.current
        assert (current.generation, current.epochs) == (1, {"tenant:t": version})


async def test_a_purge_reaches_a_worker_that_refuses_the_document(
    redis: Redis, settings: Settings
) -> None:
    control = Control(redis)
    unknown = DocumentSource(name="g.yaml", text="no_such_field: 1\n")
    newer = Published(
        generation=1, origin=1, digest="d", sources=(unknown,), author="a", reason="", time=0.0
    )
    async with following(redis, settings) as worker:
        await control.publish(newer)
        version = await control.raise_epoch("model:m")

        workers = await control.wait_for_workers(Topic.EPOCHS, version, within=60.0)

        assert set(workers.values()) == {"ok"}
        assert worker.store.current.epochs == {"model:m": version}
        refused = await control.wait_for_workers(Topic.CONFIG, 1, within=60.0)
        assert all("no_such_field" in outcome for outcome in refused.values())
    assert (await first_runtime(redis, settings)).epochs == {"model:m": version}


async def test_keys_that_could_not_be_read_are_not_acknowledged_until_they_were(
    redis: Redis, settings: Settings
) -> None:
    control = Control(redis)
    async with following(redis, settings) as worker:
        worker.trouble = DependencyUnavailable("the ledger cannot be reached")
        version = await control.touch(Topic.ACCOUNTS)
        told = await control.wait_for_workers(Topic.ACCOUNTS, version, within=60.0)

        worker.trouble = None
        names = list(told)
        async with asyncio.timeout(60.0):
            while (await control.acknowledgements(Topic.ACCOUNTS, version))[names[0]] != "ok":
                pass

    assert list(told.values()) == ["the ledger cannot be reached"]


async def test_workers_read_accounts_again_when_told(redis: Redis, settings: Settings) -> None:
    control = Control(redis)
    async with following(redis, settings) as worker:
        before = worker.accounts
        version = await control.touch(Topic.ACCOUNTS)

        await control.wait_for_workers(Topic.ACCOUNTS, version, within=60.0)

        assert worker.accounts > before


async def test_a_worker_repeats_an_acknowledgement_that_redis_has_lost(
    redis: Redis, settings: Settings, publisher: Publisher
) -> None:
    control = Control(redis)
    async with following(redis, settings):
        change = await publisher.reload(author="a")
        await redis.delete(f"sg:{{config}}:acks:config:{change.generation}")

        told = await control.wait_for_workers(Topic.CONFIG, change.generation, within=60.0)

    assert list(told.values()) == ["ok"]


async def test_a_heartbeat_says_which_acknowledgements_of_its_worker_are_gone(
    redis: Redis,
) -> None:
    control = Control(redis)
    await control.acknowledge("one", Topic.MODELS, 6)
    await control.acknowledge("one", Topic.MODELS, 7, "it is broken")
    await control.acknowledge("one", Topic.DRAINS, 7)
    assert await control.heartbeat("one", b"{}") == set()
    await redis.flushdb()

    assert await control.heartbeat("other", b"{}") == set()
    assert await control.heartbeat("one", b"{}") == {Topic.MODELS, Topic.DRAINS}
    await control.acknowledge_again("one", Topic.MODELS)
    assert await control.heartbeat("one", b"{}") == {Topic.DRAINS}
    assert await control.acknowledgements(Topic.MODELS, 7) == {"one": "it is broken"}


async def test_a_worker_repeats_a_lost_acknowledgement_of_models(
    redis: Redis, settings: Settings
) -> None:
    control, reloads = Control(redis), asyncio.Queue[str]()

    async def reload() -> None:
        reloads.put_nowait("reloaded")

    worker = identity(settings)
    async with ModelsFollower(control=control, worker=worker, reload=reload) as models:
        store = RuntimeStore(await first_runtime(redis, settings))
        follower = RuntimeFollower(
            store=store,
            control=control,
            settings=settings,
            models_changed=models.on_version,
            poll=0.02,
        )
        async with follower:
            version = await control.touch(Topic.MODELS)
            await control.wait_for_workers(Topic.MODELS, version, within=60.0)
            await redis.delete(f"sg:{{config}}:acks:models:{version}")
            told = await control.wait_for_workers(Topic.MODELS, version, within=60.0)

    assert told == {worker: "ok"}
    assert reloads.qsize() == 1


class ClockedControl(Control):
    """Says when it was asked for the time."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self.asked = asyncio.Event()

    @override
    async def server_time(self) -> float:
        self.asked.set()
        return await super().server_time()


@pytest.mark.parametrize("topic", [Topic.ACCOUNTS, Topic.MODELS])
async def test_a_change_has_a_new_version_though_redis_lost_the_last_one(
    redis: Redis, topic: Topic
) -> None:
    control = Control(redis)
    former = await control.touch(topic)
    await redis.delete(f"sg:{{config}}:version:{topic.value}")

    assert await control.touch(topic) > former


async def test_a_worker_that_starts_during_a_reload_takes_part(redis: Redis) -> None:
    control, reloads = Control(redis), asyncio.Queue[str]()

    async def reload() -> None:
        reloads.put_nowait("reloaded")

    version = await control.touch(Topic.MODELS)
    async with ModelsFollower(control=control, worker="late", reload=reload) as follower:
        follower.on_version(version)
        async with asyncio.timeout(60.0):
            await reloads.get()
            outcomes = await control.wait_for_workers(Topic.MODELS, version, within=60.0)

    assert outcomes == {"late": "ok"}


async def test_a_worker_that_starts_after_a_reload_does_not_repeat_it(redis: Redis) -> None:
    control, reloads = ClockedControl(redis), asyncio.Queue[str]()

    async def reload() -> None:
        reloads.put_nowait("reloaded")

    version = await control.touch(Topic.MODELS)
    old = version - 60_000_000
    async with ModelsFollower(control=control, worker="late", reload=reload) as follower:
        async with asyncio.timeout(60.0):
            follower.on_version(old)
            await control.asked.wait()
            follower.on_version(version)
            await reloads.get()

    assert reloads.empty()
    assert not await control.acknowledgements(Topic.MODELS, old)


async def test_workers_leave_a_report(redis: Redis, settings: Settings) -> None:
    async with following(redis, settings) as worker:
        reports = await Control(redis).reports()

    assert reports == {identity(worker.settings): b'{"cache": 1}'}


async def test_a_change_made_while_redis_was_away_is_taken_when_it_is_back(
    settings: Settings,
) -> None:
    with Valkey("--appendonly", "yes") as valkey:
        client = connect(valkey.url, timeout=0.5)
        store = RuntimeStore(await first_runtime(client, settings))
        follower = RuntimeFollower(
            store=store, control=Control(client), settings=settings, poll=0.02
        )
        with Ledger.create(settings.ledger) as ledger:
            publisher = Publisher(
                control=Control(client), ledger=ledger, settings=settings, clock=lambda: 0.0
            )
            async with follower:
                await publisher.reload(author="a")
                valkey.kill()
                with pytest.raises(DependencyUnavailable):
                    await publisher.reload(author="a")
                valkey.start()
                write(settings, ttl=4)
                await publisher.reload(author="a")

                await until(lambda: ttl(store.current) == 4, what="the new document")
        await client.aclose()
