"""Claims items in Redis, so that one of several workers that need an answer computes it.

A claim lies under the address of the answer to come, names the worker that computes it, and ends
with its lease unless it is renewed.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha1
from typing import Any, NamedTuple

from gateway.cache.entry import (
    CLAIM,
    CachedResult,
    decode_entry,
    encode_claim,
    map_values,
    read_claim,
    unpack,
)
from gateway.cache.key import CacheKey
from gateway.redis.connect import PipelinedClient
from gateway.redis.pipeline import Command, Replies
from gateway.tasks import TaskScope

_MOST_REMEMBERED = 4096
"""Claims of others that are remembered, and of look-ups."""
_TAKEN_WITHIN = 0.25
"""Of a lease: so soon after the look-up that made it a claim is renewed in time."""
_GATHERED_FOR = 0.1
"""Of a lease: renewals that are due meanwhile travel together, as each alone costs far more."""
# Of several workers that found the same value, the first one's claim takes its place.
_REPLACE = b"""
if redis.sha1hex(redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
# Not that of another worker, which may have taken the place of one that ended.
_RELEASE = b"""
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


class _Claimant:
    """A caller that claims `keys`; `denied` are those that others compute, or just have."""

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
    """A key that could not be claimed at once."""

    claimant: _Claimant
    key: CacheKey

    def deny(self) -> None:
        """Note that another worker computes it, or has just done so."""
        self.claimant.denied.add(self.key)

    def may_be_given(self, value: bytes) -> bool:
        """Tell whether an unpacked `value` is the key's answer, and current."""
        try:
            entry = decode_entry(self.key, value)
        except Exception:  # noqa: BLE001 - a damaged value is no answer, whatever is wrong with it
            return False
        return entry is not None and self.claimant.is_current(entry)


class Claims:
    """The claims of one worker, over the connection that also writes its answers.

    Keys that are claimed in one iteration of the loop travel together. Nothing here raises: where
    Redis does not say in time who computes an answer, this worker does.
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
        # What it computed in vain, or for a refresh, it does not wait for itself.
        self._name = name or secrets.token_bytes(8)
        self._elsewhere: dict[CacheKey, float] = {}
        self._by_lookup: dict[CacheKey, float] = {}
        self._unsent: list[_Claimant] = []
        self._due: set[CacheKey] = set()
        self._renewing: asyncio.TimerHandle | None = None
        self.seen = 0

    def read(self, key: CacheKey, value: bytes) -> bool:
        """Tell whether `value` is a claim on `key`, and remember it where it is another's."""
        claimant = read_claim(key, value)
        if claimant is None:
            return False
        if claimant != self._name:
            self.seen += 1
            _remember(self._elsewhere, key, self._monotonic())
        return True

    def commands(self, keys: Iterable[CacheKey]) -> list[Command]:
        """Return the commands that claim those of `keys` under which nothing is stored."""
        if self._lease <= 0:
            return []
        prefix, name, life = self._prefix, self._name, self._life()
        # Values as `encode_claim` makes them, without a call for each.
        return [
            (b"SET", prefix + address, CLAIM + tag + name, b"NX", b"PX", life)
            for address, tag in keys
        ]

    def read_replies(self, keys: Sequence[CacheKey], replies: Sequence[object]) -> None:
        """Remember which of `keys` were claimed by `commands`, that a look-up sent.

        What nobody takes or releases ends with its lease.
        """
        now, claimed = self._monotonic(), self._by_lookup
        if replies.count(b"OK") == len(keys):
            claimed.update(dict.fromkeys(keys, now))
        else:
            for key, reply in zip(keys, replies, strict=False):  # none where the lease is 0
                if reply == b"OK":
                    claimed[key] = now
        while len(claimed) > _MOST_REMEMBERED:
            del claimed[next(iter(claimed))]

    def take(self, keys: Sequence[CacheKey]) -> bool:
        """Take over the claims of look-ups on `keys` if all are claimed; tell whether they were."""
        claimed, since = self._by_lookup, self._monotonic() - self._lease * _TAKEN_WITHIN
        for key in keys:
            if claimed.get(key, since) <= since:
                return False
        for key in keys:
            claimed.pop(key, None)
        return True

    def take_each(self, keys: Sequence[CacheKey]) -> list[CacheKey]:
        """Take over the claims of look-ups on `keys`; return the keys that were claimed."""
        claimed = self._by_lookup
        return [key for key in keys if claimed.pop(key, None) is not None] if claimed else []

    async def claim(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool], *, within: float
    ) -> list[bool]:
        """Claim `keys`, and say of each whether another worker computes it, or just has.

        Keys that the last read found claimed are not requested. A stored value that is neither a
        claim nor an answer that `is_current` is replaced.
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
        """Let the claims on `keys` last for another lease, soon; answers are left as they are."""
        self._due.update(keys)
        if self._renewing is None:
            loop = asyncio.get_running_loop()
            self._renewing = loop.call_later(self._lease * _GATHERED_FOR, self._renew_due)

    def close(self) -> None:
        """Renew nothing any more."""
        if self._renewing is not None:
            self._renewing.cancel()

    def release(self, keys: Sequence[CacheKey]) -> None:
        """End the claims of this worker on `keys`; what else lies there is left as it is."""
        commands: list[Command] = [
            (b"EVAL", _RELEASE, 1, self._prefix + key.address, encode_claim(key, self._name))
            for key in keys
        ]
        self._tasks.start(self._execute(commands))

    def _flush(self) -> None:
        # Not of those who were cancelled meanwhile: nobody would release what they claim.
        unsent = [claimant for claimant in self._unsent if not claimant.ended.done()]
        self._unsent = []
        if not unsent:
            return
        # They wait for one reply.
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
        except OSError as error:  # reads and writes tell the breaker
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
        # Nothing was set: there is a claim, of another or an older one of ours, or an answer.
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
        """Find out what lies where claims were refused, and replace what is of no use to anybody.

        Nobody would answer there, and every worker that finds it would wait for that: an answer
        that may not be given any more, that is damaged, or of another secret.
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
                if reply == 0:  # another worker was quicker; an error leaves it to each
                    request.deny()

    def _replace(self, key: CacheKey, value: bytes) -> Command:
        """Return the command that puts a claim in the place of `value`."""
        name, claim = self._prefix + key.address, encode_claim(key, self._name)
        digest = sha1(value, usedforsecurity=False).hexdigest()
        return (b"EVAL", _REPLACE, 1, name, digest, claim, self._life())

    async def _execute(self, commands: Sequence[Command]) -> None:
        with contextlib.suppress(OSError):  # reads and writes tell the breaker
            await self._client.execute(commands)

    def _life(self) -> int:
        return max(1, int(self._lease * 1000))


def _remember(claims: dict[CacheKey, float], key: CacheKey, now: float) -> None:
    claims.pop(key, None)
    if len(claims) >= _MOST_REMEMBERED:
        del claims[next(iter(claims))]
    claims[key] = now


def _end(claimants: Sequence[_Claimant]) -> None:
    """Let those go on who wait for these claims: one that was lost costs only double work."""
    for claimant in claimants:
        if not claimant.ended.done():
            claimant.ended.set_result(None)
