"""Claims items in Redis, so that one of several workers that need an answer computes it.

A claim lies under the address of the answer to come, names the worker that computes it, and ends
with its lease unless it is renewed.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any, NamedTuple

from gateway.cache.entry import (
    CachedResult,
    decode_entry,
    encode_claim,
    map_values,
    read_claim,
    unpack,
)
from gateway.cache.key import CacheKey
from gateway.redis.connect import PipelinedClient
from gateway.redis.pipeline import Command
from gateway.tasks import TaskScope

_MOST_REMEMBERED = 4096
"""Claims of others that are remembered."""
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


class _Request(NamedTuple):
    """A key to claim. `is_elsewhere`: another worker computes it, or has just done so."""

    key: CacheKey
    is_current: Callable[[CachedResult], bool]
    is_elsewhere: asyncio.Future[bool]

    def may_be_given(self, value: bytes) -> bool:
        """Tell whether an unpacked `value` is the key's answer, and current."""
        try:
            entry = decode_entry(self.key, value)
        except Exception:  # noqa: BLE001 - a damaged value is no answer, whatever is wrong with it
            return False
        return entry is not None and self.is_current(entry)


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
    ) -> None:
        self._prefix = prefix
        self._client = client
        self._lease = lease
        self._monotonic = monotonic
        self._tasks = tasks
        # What it computed in vain, or for a refresh, it does not wait for itself.
        self._name = secrets.token_bytes(8)
        self._elsewhere: dict[CacheKey, float] = {}
        self._unsent: list[_Request] = []
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
            self._elsewhere.pop(key, None)
            if len(self._elsewhere) >= _MOST_REMEMBERED:
                del self._elsewhere[next(iter(self._elsewhere))]
            self._elsewhere[key] = self._monotonic()
        return True

    async def claim(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool], *, within: float
    ) -> list[bool]:
        """Claim `keys`, and say of each whether another worker computes it, or just has.

        Keys that the last read found claimed are not requested. A stored value that is neither a
        claim nor an answer that `is_current` is replaced.
        """
        if self._lease <= 0:
            return [False] * len(keys)
        since = self._monotonic() - self._lease
        elsewhere = [self._elsewhere.pop(key, since) > since for key in keys]
        pending = [
            (index, self._send(key, is_current))
            for index, (key, is_claimed) in enumerate(zip(keys, elsewhere, strict=True))
            if not is_claimed
        ]
        if pending:
            await asyncio.wait([future for _, future in pending], timeout=within)
        for index, future in pending:
            elsewhere[index] = future.done() and not future.cancelled() and future.result()
        return elsewhere

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

    def _send(
        self, key: CacheKey, is_current: Callable[[CachedResult], bool]
    ) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        if not self._unsent:
            loop.call_soon(self._flush)
        self._unsent.append(_Request(key, is_current, future))
        return future

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._tasks.start(self._write(unsent))

    def _renew_due(self) -> None:
        self._renewing = None
        due, self._due = self._due, set()
        life = self._life()
        names = [self._prefix + key.address for key in due]
        self._tasks.start(self._execute([(b"PEXPIRE", name, life, b"GT") for name in names]))

    async def _write(self, unsent: Sequence[_Request]) -> None:
        try:
            replies = await self._client.execute([self._set(request.key) for request in unsent])
            # Nothing was set: there is a claim, of another or an older one of ours, or an answer.
            refused = [
                request for request, reply in zip(unsent, replies, strict=True) if reply is None
            ]
            if refused:
                await self._examine(refused)
        except OSError:
            pass  # reads and writes tell the breaker
        finally:
            # A claim that was lost costs only that others compute it, too.
            for request in unsent:
                if not request.is_elsewhere.done():
                    request.is_elsewhere.set_result(False)

    async def _examine(self, refused: Sequence[_Request]) -> None:
        """Find out what lies where claims were refused, and replace what is of no use to anybody.

        Nobody would answer there, and every worker that finds it would wait for that: an answer
        that may not be given any more, that is damaged, or of another secret.
        """
        replies: list[Any] = await self._client.execute(
            [(b"GET", self._prefix + request.key.address) for request in refused]
        )
        values = [reply if isinstance(reply, bytes) else None for reply in replies]
        useless: list[tuple[_Request, bytes]] = []
        plain_values = await map_values(unpack, values)
        for request, value, plain in zip(refused, values, plain_values, strict=True):
            if value is None or plain is None:
                continue
            claimant = read_claim(request.key, value)
            if claimant is not None:
                request.is_elsewhere.set_result(claimant != self._name)
            elif request.may_be_given(plain):
                request.is_elsewhere.set_result(True)
            else:
                useless.append((request, value))
        if useless:
            replies = await self._client.execute(
                [self._replace(request.key, value) for request, value in useless]
            )
            for (request, _), reply in zip(useless, replies, strict=True):
                # Another worker was quicker; an error leaves it to each.
                request.is_elsewhere.set_result(reply == 0)

    def _set(self, key: CacheKey) -> Command:
        claim = encode_claim(key, self._name)
        return (b"SET", self._prefix + key.address, claim, b"NX", b"PX", self._life())

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
