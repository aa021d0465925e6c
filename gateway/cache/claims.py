"""Claims in Redis: which worker computes an answer that several are asked for at once.

A claim lies under the address of the answer to come, names the worker that computes it, and ends
with its lease unless it is renewed.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from gateway.cache.entry import encode_claim, read_claim
from gateway.cache.key import CacheKey
from gateway.cache.redis_pipes import Pipe
from gateway.redis_pipe import Command
from gateway.tasks import TaskOwner

_MOST_REMEMBERED = 4096
"""Claims of others that are remembered."""


class Claims:
    """The claims of one worker, over the connection that also writes its answers.

    Keys that are claimed in one iteration of the loop travel together. Nothing here raises: where
    Redis does not say in time who computes an answer, this worker does.
    """

    def __init__(
        self,
        *,
        prefix: bytes,
        pipe: Pipe,
        lease: float,
        monotonic: Callable[[], float],
        tasks: TaskOwner,
    ) -> None:
        self._prefix = prefix
        self._pipe = pipe
        self._lease = lease
        self._monotonic = monotonic
        self._tasks = tasks
        # What it computed in vain, or for a refresh, it does not wait for itself.
        self._name = secrets.token_bytes(8)
        self._elsewhere: dict[CacheKey, float] = {}
        self._unsent: list[tuple[CacheKey, asyncio.Future[bool]]] = []
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

    async def claim(self, keys: Sequence[CacheKey], *, within: float) -> list[bool]:
        """Claim `keys`, and say of each whether another worker computes it, or just has.

        What the last read saw claimed is not asked for again.
        """
        if self._lease <= 0:
            return [False] * len(keys)
        since = self._monotonic() - self._lease
        elsewhere = [self._elsewhere.pop(key, since) > since for key in keys]
        asked = [
            (index, self._send(key))
            for index, (key, is_claimed) in enumerate(zip(keys, elsewhere, strict=True))
            if not is_claimed
        ]
        if asked:
            await asyncio.wait([future for _, future in asked], timeout=within)
        for index, future in asked:
            elsewhere[index] = future.done() and not future.cancelled() and future.result()
        return elsewhere

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Let the claims on `keys` last for another lease; answers are left as they are."""
        life = self._life()
        names = [self._prefix + key.address for key in keys]
        self._tasks.start(self._tell([(b"PEXPIRE", name, life, b"GT") for name in names]))

    def _send(self, key: CacheKey) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        if not self._unsent:
            loop.call_soon(self._flush)
        self._unsent.append((key, future))
        return future

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._tasks.start(self._write(unsent))

    async def _write(self, unsent: Sequence[tuple[CacheKey, asyncio.Future[bool]]]) -> None:
        life = self._life()
        try:
            replies = await self._pipe.execute(
                [
                    (
                        *(b"SET", self._prefix + key.address, encode_claim(key, self._name)),
                        *(b"NX", b"PX", life),
                    )
                    for key, _ in unsent
                ]
            )
            # Nothing was set: there is a claim, of another or an older one of ours, or an answer.
            refused = [each for each, reply in zip(unsent, replies, strict=True) if reply is None]
            found = await self._read([key for key, _ in refused])
        except OSError:
            refused, found = [], []
        finally:
            # A claim that was lost costs only that others compute it, too.
            taken = {
                id(future) for (_, future), is_taken in zip(refused, found, strict=True) if is_taken
            }
            for _, future in unsent:
                if not future.done():
                    future.set_result(id(future) in taken)

    async def _read(self, keys: Sequence[CacheKey]) -> list[bool]:
        """Tell which of `keys` have something that is no claim of this worker."""
        if not keys:
            return []
        values: list[Any] = await self._pipe.execute(
            [(b"GET", self._prefix + key.address) for key in keys]
        )
        return [
            isinstance(value, bytes) and read_claim(key, value) != self._name
            for key, value in zip(keys, values, strict=True)
        ]

    async def _tell(self, commands: Sequence[Command]) -> None:
        with contextlib.suppress(OSError):  # reads and writes tell the breaker
            await self._pipe.execute(commands)

    def _life(self) -> int:
        return max(1, int(self._lease * 1000))
