"""Claims cache keys in Redis, so that only one worker at a time computes a missing result.

A claim is stored in Redis at the address where the result will be stored. It names the worker that
computes the result. A claim expires when its lease ends, unless the worker renews it.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha1
from typing import Any

from gateway.cache.entry import (
    CLAIM,
    KEY_PREFIX,
    CachedResult,
    decode_entry,
    encode_claim,
    map_values,
    read_claim,
    unpack,
)
from gateway.cache.key import CacheKey
from gateway.redis.circuit_breaker import BreakerState, CircuitBreaker
from gateway.redis.connect import PipelinedClient
from gateway.redis.pipeline import Command
from gateway.tasks import TaskScope

PER_KEY = 20e-6
"""Each key lengthens a call's timeout by this many seconds, so that large calls do not look
slow."""
_MAX_REMEMBERED = 4096
"""The most claims of other workers that are remembered, and the most claims by lookups."""
_TAKEN_WITHIN = 0.25
"""A caller must take over a lookup's claim within this fraction of the lease. A claim that is taken
over later could expire before the caller renews it."""
# Replaces a value with a claim, if the value has not changed since it was read. If several workers
# have read the same value, only the first worker replaces it.
_REPLACE = b"""
if redis.sha1hex(redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
# Deletes only this worker's claim. If this worker's claim has expired, the key can hold another
# worker's claim by now.
_RELEASE = b"""
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


class Claims:
    """Makes, renews and ends the claims of one worker.

    Claims use the connection that also writes results. Methods raise no errors. If Redis does not
    respond in time, this worker computes the results.
    """

    def __init__(
        self,
        *,
        client: PipelinedClient,
        timeout: float,
        lease: float,
        monotonic: Callable[[], float],
        breaker: CircuitBreaker,
        tasks: TaskScope,
        name: bytes | None = None,
    ) -> None:
        self._client = client
        self._timeout = timeout
        self._breaker = breaker
        self._lease = lease
        self._life = max(1, int(1000 * lease))
        """The milliseconds that a claim lasts in Redis."""
        self._monotonic = monotonic
        self._tasks = tasks
        # This worker's name in claims. An earlier error or refresh can leave claims of this worker
        # behind. The worker does not wait for its own claims.
        self._name = name or secrets.token_bytes(8)
        self._elsewhere: dict[CacheKey, float] = {}
        self._by_lookup: dict[CacheKey, float] = {}
        self.seen = 0

    def read(self, key: CacheKey, value: bytes) -> bool:
        """Return whether `value` is a claim on `key`.

        If the value is another worker's claim, remember this claim.
        """
        claimant = read_claim(key, value)
        if claimant is None:
            return False
        if claimant != self._name:
            self.seen += 1
            known = self._elsewhere
            known.pop(key, None)
            if len(known) >= _MAX_REMEMBERED:
                del known[next(iter(known))]
            known[key] = self._monotonic()
        return True

    def commands(self, keys: Iterable[CacheKey]) -> list[Command]:
        """Return a command for each key, which claims the key if Redis has no value for it."""
        if self._lease <= 0:
            return []
        name, life = self._name, self._life
        # This is the code of `encode_claim`, inlined to save a call for each key.
        return [
            (b"SET", KEY_PREFIX + address, CLAIM + tag + name, b"NX", b"PX", life)
            for address, tag in keys
        ]

    def read_replies(self, keys: Sequence[CacheKey], replies: Sequence[object]) -> None:
        """Record which of `keys` a lookup has claimed.

        `replies` are Redis's replies to the commands that `commands` returned. If no caller takes
        over or releases a claim, it expires when its lease ends.
        """
        now, claimed = self._monotonic(), self._by_lookup
        if replies.count(b"OK") == len(keys):
            claimed.update(dict.fromkeys(keys, now))
        else:
            for key, reply in zip(keys, replies, strict=False):  # no replies if the lease is 0
                if reply == b"OK":
                    claimed[key] = now
        while len(claimed) > _MAX_REMEMBERED:
            del claimed[next(iter(claimed))]

    def take(self, keys: Sequence[CacheKey]) -> bool:
        """Return whether lookups have claimed all `keys`.

        If so, the caller owns the claims from now on.
        """
        claimed, since = self._by_lookup, self._monotonic() - self._lease * _TAKEN_WITHIN
        for key in keys:
            if claimed.get(key, since) <= since:
                return False
        for key in keys:
            claimed.pop(key, None)
        return True

    def release_unused(self, keys: Sequence[CacheKey]) -> None:
        """End the claims on `keys` that lookups made and that nobody has taken over."""
        claimed = self._by_lookup
        if claimed and (unused := [key for key in keys if claimed.pop(key, None) is not None]):
            self.release(unused)

    async def claim(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool]
    ) -> list[bool]:
        """Claim `keys`. Return for each key whether another worker takes care of its result.

        The other worker is computing the result, or has just stored it. If a read has just found
        another worker's claim on a key, Redis is not asked about this key again. A claim replaces a
        stored value that is neither a claim nor a current result.
        """
        if self._lease <= 0 or not self._is_redis_usable():
            return [False] * len(keys)
        since = self._monotonic() - self._lease
        denied = {key for key in keys if self._elsewhere.pop(key, since) > since}
        wanted = [key for key in keys if key not in denied and not self.take([key])]
        if wanted:
            with contextlib.suppress(OSError):  # a time-out is one
                async with asyncio.timeout(self._timeout + PER_KEY * len(keys)):
                    denied.update(await self._refused(wanted, is_current))
        return [key in denied for key in keys]

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Extend the claims on `keys` to a full lease. Results that are already stored stay."""
        life = self._life
        names = [KEY_PREFIX + key.address for key in keys]
        self._execute([(b"PEXPIRE", name, life, b"GT") for name in names])

    def release(self, keys: Sequence[CacheKey]) -> None:
        """End this worker's claims on `keys`. Results and other workers' claims stay."""
        commands: list[Command] = [
            (b"EVAL", _RELEASE, 1, KEY_PREFIX + key.address, encode_claim(key, self._name))
            for key in keys
        ]
        self._execute(commands)

    async def _refused(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool]
    ) -> list[CacheKey]:
        """Claim `keys`, and return those whose results another worker takes care of.

        A useless value is replaced by a claim. A value is useless if it is a result that is not
        current, is damaged, or was stored with another secret. If a useless value stayed, workers
        would wait in vain for another worker's result.
        """
        name, life = self._name, self._life
        commands: list[Command] = [
            (b"SET", KEY_PREFIX + key.address, encode_claim(key, name), b"NX", b"GET", b"PX", life)
            for key in keys
        ]
        replies: list[Any] = await self._client.execute(commands)
        # Redis returns the value that kept a key from being set. After an error, nobody has the
        # claim, and each worker computes the result.
        values = [reply if isinstance(reply, bytes) else None for reply in replies]
        refused: list[CacheKey] = []
        useless: list[tuple[CacheKey, bytes]] = []
        for key, value, plain in zip(keys, values, await map_values(unpack, values), strict=True):
            if value is None or plain is None:
                continue
            owner = read_claim(key, value)
            if owner is None and not _is_current(key, plain, is_current):
                useless.append((key, value))
            elif owner != self._name:
                refused.append(key)
        if useless:
            replies = await self._client.execute([self._replace(*each) for each in useless])
            # A reply of 0 means that another worker was faster.
            refused += [key for (key, _), reply in zip(useless, replies, strict=True) if reply == 0]
        return refused

    def _replace(self, key: CacheKey, value: bytes) -> Command:
        """Return the command that replaces `value`, the present value of `key`, with a claim."""
        name, claim = KEY_PREFIX + key.address, encode_claim(key, self._name)
        digest = sha1(value, usedforsecurity=False).hexdigest()
        return (b"EVAL", _REPLACE, 1, name, digest, claim, self._life)

    def _execute(self, commands: Sequence[Command]) -> None:
        """Run commands in a task. Other calls report a failure to the circuit breaker."""

        async def execute() -> None:
            with contextlib.suppress(OSError):
                await self._client.execute(commands)

        if self._is_redis_usable():
            self._tasks.start(execute())

    def _is_redis_usable(self) -> bool:
        return self._breaker.state is BreakerState.CLOSED


def _is_current(key: CacheKey, value: bytes, is_current: Callable[[CachedResult], bool]) -> bool:
    """Return whether the uncompressed `value` is a result that this worker can use."""
    try:
        entry = decode_entry(key, value)
    except Exception:  # noqa: BLE001 - a damaged value is not a result
        return False
    return entry is not None and is_current(entry)
