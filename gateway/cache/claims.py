"""Claims cache keys in Redis, so that only one worker at a time computes a missing result.

A claim is stored in Redis at the address where the result will be stored. It names the worker that
computes the result. A claim expires when its lease ends, unless the worker renews it.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha1
from typing import Any, NamedTuple

from sluicegate.gateway.cache.entry import (
    CLAIM,
    CachedResult,
    decode_entry,
    encode_claim,
    map_values,
    read_claim,
    unpack,
)
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.redis.pipeline import Command, Replies
from sluicegate.gateway.tasks import TaskScope

_MAX_REMEMBERED = 4096
"""The most claims of other workers that are remembered, and the most claims by lookups."""
_TAKEN_WITHIN = 0.25
"""A caller must take over a lookup's claim within this fraction of the lease. A claim that is taken
over later could expire before the caller renews it."""
_GATHERED_FOR = 0.1
"""Renewals are collected for this fraction of a lease, because one call is cheaper than many
calls."""
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


class _Claimant:
    """Holds the `keys` that a caller wants to claim.

    `denied` are the keys whose results another worker computes or has just stored.
    """

    __slots__ = ("denied", "ended", "is_current", "keys", "within")

    def __init__(
        self,
        keys: Sequence[CacheKey],
        is_current: Callable[[CachedResult], bool],
        ended: "asyncio.Future[None]",
        within: float,
    ) -> None:
        self.keys = keys
        self.is_current = is_current
        self.within = within
        self.denied: set[CacheKey] = set()
        self.ended = ended


class _Refused(NamedTuple):
    """A key that Redis did not let this worker claim, because the key already had a value."""

    claimant: _Claimant
    key: CacheKey

    def deny(self) -> None:
        """Record that another worker computes the key's result, or has just stored it."""
        self.claimant.denied.add(self.key)

    def may_be_given(self, value: bytes) -> bool:
        """Return whether the uncompressed `value` is a result that this worker can use."""
        try:
            entry = decode_entry(self.key, value)
        except Exception:  # noqa: BLE001 - a damaged value is not a result
            return False
        return entry is not None and self.claimant.is_current(entry)


class Claims:
    """Makes, renews and ends the claims of one worker.

    Claims use the connection that also writes results. Keys that are claimed in the same event-loop
    iteration share a call. Methods raise no errors. If Redis does not respond in time, this worker
    computes the results.
    """

    def __init__(
        self,
        *,
        prefix: bytes,
        client: PipelinedClient,
        lease: float,
        monotonic: Callable[[], float],
        tasks: TaskScope,
        name: bytes | None = None,
    ) -> None:
        self._prefix = prefix
        self._client = client
        self._lease = lease
        self._monotonic = monotonic
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        # This worker's name in claims. An earlier error or refresh can leave claims of this worker
        # behind. The worker does not wait for its own claims.
        self._name = name or secrets.token_bytes(8)
        self._elsewhere: dict[CacheKey, float] = {}
        self._by_lookup: dict[CacheKey, float] = {}
        self._unsent: list[_Claimant] = []
        self._due: set[CacheKey] = set()
        self._renewing: asyncio.TimerHandle | None = None
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
            _remember(self._elsewhere, key, self._monotonic())
        return True

    def commands(self, keys: Iterable[CacheKey]) -> list[Command]:
        """Return a command for each key, which claims the key if Redis has no value for it."""
        if self._lease <= 0:
            return []
        prefix, name, life = self._prefix, self._name, self._life()
        # This is the code of `encode_claim`, inlined to save a call for each key.
        return [
            (b"SET", prefix + address, CLAIM + tag + name, b"NX", b"PX", life)
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

    def take_each(self, keys: Sequence[CacheKey]) -> list[CacheKey]:
        """Take over all claims that lookups made on any of `keys`, and return the claimed keys."""
        claimed = self._by_lookup
        return [key for key in keys if claimed.pop(key, None) is not None] if claimed else []

    async def claim(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool], *, within: float
    ) -> list[bool]:
        """Claim `keys`. Return for each key whether another worker takes care of its result.

        The other worker is computing the result, or has just stored it. If a read has just found
        another worker's claim on a key, Redis is not asked about this key again. A claim replaces a
        stored value that is neither a claim nor a current result.
        """
        if self._lease <= 0:
            return [False] * len(keys)
        denied: set[CacheKey] = set()
        wanted = keys
        if self._elsewhere:
            since = self._monotonic() - self._lease
            denied = {key for key in keys if self._elsewhere.pop(key, since) > since}
            wanted = [key for key in keys if key not in denied]
        wanted = [key for key in wanted if not self.take([key])]
        if wanted:
            claimant = _Claimant(wanted, is_current, self._loop.create_future(), within)
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(claimant)
            await claimant.ended
            denied |= claimant.denied
        return [key in denied for key in keys] if denied else [False] * len(keys)

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Extend the claims on `keys` to a full lease, soon but not immediately.

        Results that are already stored do not change.
        """
        self._due.update(keys)
        if self._renewing is None:
            loop = asyncio.get_running_loop()
            self._renewing = loop.call_later(self._lease * _GATHERED_FOR, self._renew_due)

    def close(self) -> None:
        """Stop renewing claims."""
        if self._renewing is not None:
            self._renewing.cancel()

    def release(self, keys: Sequence[CacheKey]) -> None:
        """End this worker's claims on `keys`. Results and other workers' claims stay."""
        commands: list[Command] = [
            (b"EVAL", _RELEASE, 1, self._prefix + key.address, encode_claim(key, self._name))
            for key in keys
        ]
        self._tasks.start(self._execute(commands))

    def _flush(self) -> None:
        # Cancelled callers are skipped, because nobody would release their claims.
        unsent = [claimant for claimant in self._unsent if not claimant.ended.done()]
        self._unsent = []
        if not unsent:
            return
        # All callers wait for one reply, so the longest of their time limits applies to all.
        within = max([claimant.within for claimant in unsent])
        timer = self._loop.call_later(within, _end, unsent)
        on_done = partial(self._replied, unsent, timer)
        commands = self.commands(key for claimant in unsent for key in claimant.keys)
        if not self._client.execute_nowait(commands, on_done):
            self._tasks.start(self._write(commands, on_done))

    def _renew_due(self) -> None:
        self._renewing = None
        due, self._due = self._due, set()
        life = self._life()
        names = [self._prefix + key.address for key in due]
        self._tasks.start(self._execute([(b"PEXPIRE", name, life, b"GT") for name in names]))

    async def _write(self, commands: Sequence[Command], on_done: Callable[[Replies], None]) -> None:
        replies: Replies = ConnectionError("given up")
        try:
            replies = await self._client.execute(commands)
        except OSError as error:  # other calls report the failure to the circuit breaker
            replies = error.with_traceback(None)
        finally:
            on_done(replies)

    def _replied(
        self, claimants: list[_Claimant], timer: asyncio.TimerHandle, replies: Replies
    ) -> None:
        if isinstance(replies, OSError) or None not in replies:
            timer.cancel()
            _end(claimants)
            return
        # If a key could not be set, its value is another worker's claim, an older claim of this
        # worker, or a result.
        claims = (_Refused(claimant, key) for claimant in claimants for key in claimant.keys)
        refused = [one for one, reply in zip(claims, replies, strict=True) if reply is None]
        self._tasks.start(self._examine(refused, claimants, timer))

    async def _examine(
        self, refused: list[_Refused], claimants: list[_Claimant], timer: asyncio.TimerHandle
    ) -> None:
        try:
            with contextlib.suppress(OSError):
                await self._replace_useless(refused)
        finally:
            timer.cancel()
            _end(claimants)

    async def _replace_useless(self, refused: Sequence[_Refused]) -> None:
        """Read the values of keys that could not be claimed. Replace useless values with claims.

        A value is useless if it is a result that is not current, is damaged, or was stored with
        another secret. If a useless value stayed, workers would wait in vain for another worker's
        result.
        """
        replies: list[Any] = await self._client.execute(
            [(b"GET", self._prefix + request.key.address) for request in refused]
        )
        values = [reply if isinstance(reply, bytes) else None for reply in replies]
        useless: list[tuple[_Refused, bytes]] = []
        plain_values = await map_values(unpack, values)
        for request, value, plain in zip(refused, values, plain_values, strict=True):
            if value is None or plain is None:
                continue
            owner = read_claim(request.key, value)
            if owner is None and not request.may_be_given(plain):
                useless.append((request, value))
            elif owner != self._name:
                request.deny()
        if useless:
            replies = await self._client.execute(
                [self._replace(request.key, value) for request, value in useless]
            )
            for (request, _), reply in zip(useless, replies, strict=True):
                # A reply of 0 means that another worker was faster. If the reply is an error, each
                # worker computes the result.
                if reply == 0:
                    request.deny()

    def _replace(self, key: CacheKey, value: bytes) -> Command:
        """Return the command that replaces `value`, the present value of `key`, with a claim."""
        name, claim = self._prefix + key.address, encode_claim(key, self._name)
        digest = sha1(value, usedforsecurity=False).hexdigest()
        return (b"EVAL", _REPLACE, 1, name, digest, claim, self._life())

    async def _execute(self, commands: Sequence[Command]) -> None:
        with contextlib.suppress(OSError):  # other calls report the failure to the circuit breaker
            await self._client.execute(commands)

    def _life(self) -> int:
        return max(1, int(self._lease * 1000))


def _remember(claims: dict[CacheKey, float], key: CacheKey, now: float) -> None:
    claims.pop(key, None)
    if len(claims) >= _MAX_REMEMBERED:
        del claims[next(iter(claims))]
    claims[key] = now


def _end(claimants: Sequence[_Claimant]) -> None:
    """Resume the callers.

    If a claim was lost, two workers compute the same result. This does no other harm.
    """
    for claimant in claimants:
        if not claimant.ended.done():
            claimant.ended.set_result(None)
