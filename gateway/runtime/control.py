"""Reads and writes the configuration state, which all workers share, in Redis.

The published configuration document is stored under the key `sg:{config}:active`. All other keys
have the same prefix `sg:{config}`, followed by `:generation`, `:history`, `:acks:*`, `:workers`,
`:reports`, `:epochs`, `:drained` or `:lineage`. The hash tag `{config}` puts all keys in one slot
of a Redis Cluster. A script can therefore use several of these keys.

Changes are announced on the channel `sg:{config}:changed`. A worker that misses a message notices
the change when it next polls the versions.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.runtime import control_scripts
from sluicegate.gateway.runtime.control_values import Published, Topic, Versions

T = TypeVar("T")

CONTROL_KEYS = "sg:{config}:"
"""The prefix of all keys. Its hash tag puts them into one slot of a cluster."""
_ACTIVE = CONTROL_KEYS + "active"
_GENERATION = CONTROL_KEYS + "generation"
_HISTORY = CONTROL_KEYS + "history"
_WORKERS = CONTROL_KEYS + "workers"
_REPORTS = CONTROL_KEYS + "reports"
_EPOCHS = CONTROL_KEYS + "epochs"
_DRAINED = CONTROL_KEYS + "drained"
_PURGE_HISTORY = CONTROL_KEYS + "lineage"
_CHANGED = CONTROL_KEYS + "changed"
_KEPT = 50
_ACKS_KEPT = 86_400
_LIVE = 5
_LISTEN = 0.25


class Control:
    """Reads and writes the configuration state.

    Every method may raise `DependencyUnavailable`.
    """

    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._acknowledged: dict[str, dict[Topic, tuple[int, str]]] = {}
        """The last version and outcome of each topic that was acknowledged, by worker."""

    async def versions(self) -> Versions:
        """Return the newest version of each topic."""
        keys = [_GENERATION if topic is Topic.CONFIG else _version(topic) for topic in Topic]
        *found, purge_history = await self._execute(self._redis.mget(*keys, _PURGE_HISTORY))
        numbers = {topic.value: int(found or 0) for topic, found in zip(Topic, found, strict=True)}
        return Versions(**numbers, purge_history=(purge_history or b"").decode())

    async def active(self) -> Published | None:
        """Return the published document, or `None` if no document was published yet."""
        found = await self._execute(self._redis.get(_ACTIVE))
        return None if found is None else msgspec.msgpack.decode(found, type=Published)

    async def history(self) -> list[Published]:
        """Return the published documents, newest first."""
        found = await self._execute(self._redis.lrange(_HISTORY, 0, -1))
        return [msgspec.msgpack.decode(entry, type=Published) for entry in found]

    async def publish(self, published: Published) -> bool:
        """Make `published` the active document, and return whether that succeeded.

        It fails if the newest generation is not `published.generation` - 1. Another document was
        then published in the meantime.
        """
        answer = await self._script(
            control_scripts.PUBLISH,
            (_GENERATION, _ACTIVE, _HISTORY),
            published.generation - 1,
            published.generation,
            msgspec.msgpack.encode(published),
            _KEPT - 1,
            _CHANGED,
        )
        return int(answer) == -1

    async def epochs(self) -> dict[str, int]:
        """Return the cache epochs of tenants and models by name.

        An epoch is the time of the last purge in microseconds since 1970, or later. Epochs of
        earlier versions are smaller numbers. A name is `tenant:<id>` or `model:<name>`.
        """
        found = await self._execute(self._redis.hgetall(_EPOCHS))
        return {name.decode(): int(value) for name, value in found.items()}

    async def purge_history(self) -> str:
        """Return the id of the history of cache purges, and create an id if there is none.

        The id is part of every cache key. If Redis loses its data, all cache epochs are 0 again, as
        before the first purge. The new id keeps purged results from becoming visible again.
        """
        await self._execute(self._redis.set(_PURGE_HISTORY, secrets.token_hex(8), nx=True))
        found: bytes = await self._execute(self._redis.get(_PURGE_HISTORY))
        return found.decode()

    async def start_purge_history(self, version: int = 0, *, former: str = "") -> None:
        """Give the history of cache purges a new id, because Redis has lost purges.

        This happens if Redis restarts from an older file, or if a replica that lagged becomes the
        primary. With the old id, workers would find the purged results again. Nothing is done
        unless the version of the cache epochs is below `version`, or `former` is still the id.
        """
        fresh, keys = secrets.token_hex(8), (_version(Topic.EPOCHS), _PURGE_HISTORY)
        await self._script(
            control_scripts.START_PURGE_HISTORY, keys, version, fresh, _CHANGED, former
        )

    async def raise_epoch(self, name: str) -> int:
        """Purge all cached results of the tenant or model `name` by raising its epoch.

        Return the new epoch. It is also the version that workers must acknowledge.
        """
        keys = _version(Topic.EPOCHS), _EPOCHS
        topic = Topic.EPOCHS.value
        return int(await self._script(control_scripts.TOUCH, keys, _CHANGED, topic, name))

    async def drained(self) -> frozenset[str]:
        """Return the ids of drained backends."""
        found = await self._execute(self._redis.smembers(_DRAINED))
        return frozenset(name.decode() for name in found)

    async def drain(self, backend: str) -> int:
        """Drain `backend`. Return the version that workers must acknowledge."""
        return await self._change(Topic.DRAINS, "SADD", _DRAINED, backend)

    async def restore(self, backend: str) -> int:
        """Undo the drain of `backend`. Return the version that workers must acknowledge."""
        return await self._change(Topic.DRAINS, "SREM", _DRAINED, backend)

    async def restore_state(
        self, history: Sequence[Published], drains: int, drained: Iterable[str]
    ) -> bool:
        """Restore documents (newest first) and drained backends that Redis has lost.

        Returns:
            True if this call has restored something. False if nothing was lost, or if another
            process had already restored the state.
        """
        newest = history[0].generation if history else 0
        answer = await self._script(
            control_scripts.RESTORE,
            (_GENERATION, _ACTIVE, _HISTORY, _DRAINED, _version(Topic.DRAINS)),
            newest,
            drains,
            len(history),
            _CHANGED,
            *map(msgspec.msgpack.encode, history),
            *drained,
        )
        return bool(answer)

    async def touch(self, topic: Topic) -> int:
        """Announce a change of `topic`. Return the version that workers must acknowledge.

        The version is the time in microseconds since 1970, or later.
        """
        keys = (_version(topic),)
        return int(await self._script(control_scripts.TOUCH, keys, _CHANGED, topic.value))

    async def acknowledge(
        self, worker: str, topic: Topic, version: int, outcome: str = "ok"
    ) -> None:
        """Record that `worker` has handled `version`. `outcome` is `ok` or a failure's reason."""
        self.note(worker, topic, version, outcome)
        key = _acks(topic, version)
        await self._execute(self._redis.hset(key, worker, outcome))
        await self._execute(self._redis.expire(key, _ACKS_KEPT))

    def note(self, worker: str, topic: Topic, version: int, outcome: str) -> None:
        """Let the next heartbeat of `worker` look for this acknowledgement."""
        self._acknowledged.setdefault(worker, {})[topic] = version, outcome

    async def acknowledge_again(self, worker: str, topic: Topic) -> None:
        """Repeat the last acknowledgement of `topic` by `worker`.

        The versions of the topic must be times: a number may stand for another change after Redis
        has lost the first one.
        """
        version, outcome = self._acknowledged[worker][topic]
        await self.acknowledge(worker, topic, version, outcome)

    async def acknowledgements(self, topic: Topic, version: int) -> dict[str, str]:
        """Return the outcome that each worker has recorded for `version`."""
        found = await self._execute(self._redis.hgetall(_acks(topic, version)))
        return {worker.decode(): outcome.decode() for worker, outcome in found.items()}

    async def wait_for_workers(
        self, topic: Topic, version: int, *, within: float, interval: float = 0.02
    ) -> dict[str, str]:
        """Wait until all live workers have acknowledged `version`. Return each worker's outcome.

        The outcome of a worker that has not responded in time is `pending`. If a newer version
        replaces `version`, the method waits for the newer version.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        while True:
            workers = await self.workers()
            acks = await self.acknowledgements(topic, version)
            outcomes = {worker: acks.get(worker, "pending") for worker in workers}
            if "pending" not in outcomes.values() or loop.time() >= deadline:
                return outcomes
            await asyncio.sleep(interval)
            version = max(version, (await self.versions()).of(topic))

    async def heartbeat(self, worker: str, report: bytes) -> frozenset[Topic]:
        """Record that `worker` is alive. Store its `report`, which is JSON.

        Returns:
            The topics whose last acknowledgement by `worker` is no longer in Redis: Redis has lost
            it, or has deleted it after a day.
        """
        last = self._acknowledged.get(worker, {})
        topics = {_acks(topic, version): topic for topic, (version, _) in last.items()}
        keys = (_WORKERS, _REPORTS, *topics)
        lost = await self._script(control_scripts.HEARTBEAT, keys, worker, report, _LIVE)
        return frozenset(topics[key.decode()] for key in lost)

    async def leave(self, worker: str) -> None:
        """Remove `worker` from the live workers."""
        await self._execute(self._redis.zrem(_WORKERS, worker))
        await self._execute(self._redis.hdel(_REPORTS, worker))

    async def server_time(self) -> float:
        """Return the time of Redis in seconds since 1970.

        Raises:
            DependencyUnavailable: Redis does not respond.
        """
        seconds, microseconds = await self._execute(self._redis.time())
        return float(seconds) + float(microseconds) / 1e6

    async def workers(self) -> list[str]:
        """Return the workers with a recent heartbeat."""
        found = await self._script(control_scripts.LIVE_WORKERS, (_WORKERS,), _LIVE)
        return sorted(worker.decode() for worker in found)

    async def reports(self) -> dict[str, bytes]:
        """Return the last report (JSON) of each live worker."""
        found = await self._execute(self._redis.hgetall(_REPORTS))
        live = set(await self.workers())
        return {name.decode(): text for name, text in found.items() if name.decode() in live}

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
        """Yield a function that waits briefly for a change, and returns whether a change came."""
        loop = asyncio.get_running_loop()
        async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
            await self._execute(pubsub.subscribe(_CHANGED))

            async def receive() -> bool:
                until = loop.time() + _LISTEN
                message = await self._execute(pubsub.get_message(timeout=_LISTEN))
                if message is None and (rest := until - loop.time()) > 0:
                    # Redis sometimes responds early with an empty result. The caller must pause
                    # before the next call.
                    await asyncio.sleep(rest)
                return message is not None

            yield receive

    async def _change(self, topic: Topic, *command: str | int) -> int:
        """Execute `command` and announce the change in one transaction. Return the new version."""
        async with self._redis.pipeline(transaction=True) as together:
            together.execute_command(*command)
            together.execute_command("INCR", _version(topic))
            together.execute_command("PUBLISH", _CHANGED, topic.value)
            *_, version, _ = await self._execute(together.execute())
        return int(version)

    async def _script(self, script: str, keys: Sequence[str], *values: str | bytes | int) -> Any:
        return await self._execute(self._redis.eval(script, len(keys), *keys, *values))

    # Any: the type of a reply depends on the command
    async def _execute(self, command: Any) -> Any:
        try:
            return await cast("Awaitable[Any]", command)
        except (RedisError, OSError) as error:
            raise DependencyUnavailable(
                "the state Redis cannot be reached; try again in a moment", retry_after=1.0
            ) from error


def _version(topic: Topic) -> str:
    return f"{CONTROL_KEYS}version:{topic.value}"


def _acks(topic: Topic, version: int) -> str:
    return f"{CONTROL_KEYS}acks:{topic.value}:{version}"
