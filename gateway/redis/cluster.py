"""Commands for a Redis Cluster, each sent to the node that has its key."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from redis.crc import key_slot

from gateway.redis.circuit_breaker import CircuitBreaker
from gateway.redis.pipeline import Command, RedisPipe, Replies
from gateway.redis.url import Servers
from gateway.sockets.tcp_keepalive import SHIPPED, TcpKeepalive

_LOOK_AGAIN = 1.0
"""Seconds between two looks at who owns which slots."""
_FAILURES = 3
"""Bad calls in a row after which a node is left alone: fewer than would end the whole tier."""
_SLOTS = 16_384


class _Node:
    """A node's connection, and whether it is worth asking."""

    def __init__(self, url: str, *, timeout: float, slow: float, keepalive: TcpKeepalive) -> None:
        self.pipe = RedisPipe(url, timeout=timeout, keepalive=keepalive)
        self.breaker = CircuitBreaker(failures=_FAILURES, slow=slow)


class ClusterPipe:
    """A `RedisPipe` over all nodes of a cluster; the first key of a command says who is asked.

    Of scripts, too, which come as `EVAL`.

    `MGET` is taken apart: keys of several slots cannot be asked for at once, so each node gets a
    `GET` for each of its keys, all in one piece. A node that fails costs its own keys only; where
    every node fails, so does the call. A call slower than `slow` seconds is a bad one.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        timeout: float,
        slow: float,
        keepalive: TcpKeepalive = SHIPPED,
    ) -> None:
        self._servers = servers
        self._make = partial(_Node, timeout=timeout, slow=slow, keepalive=keepalive)
        self._nodes: dict[str, _Node] = {}
        self._owners: list[_Node] = []
        self._looking = asyncio.Lock()
        self._look_at = 0.0
        self._is_stale = True

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Return the reply to each command; an error of one command is its reply.

        Raises:
            OSError: no node could be asked.
        """
        if self._is_stale:
            await self._look()
        single = [part for command in commands for part in _apart(command)]
        replies = iter(await self._ask(single))
        return [
            [_value(next(replies)) for _ in command[1:]] if command[0] == b"MGET" else next(replies)
            for command in commands
        ]

    def ask(self, commands: Sequence[Command], told: Callable[[Replies], object]) -> bool:
        """Return `False`: several nodes are waited for."""
        return False

    async def aclose(self) -> None:
        """Close every connection."""
        for node in self._nodes.values():
            await node.pipe.aclose()

    async def _ask(self, commands: Sequence[Command]) -> list[Any]:
        """Return the reply to each command of one key, or the error of its node."""
        shares: dict[_Node, list[int]] = {}
        for index, command in enumerate(commands):
            slot = key_slot(_bytes(command[at])) if len(command) > (at := _key_at(command)) else 0
            shares.setdefault(self._owners[slot], []).append(index)
        asked = [
            self._ask_node(node, [commands[index] for index in share])
            for node, share in shares.items()
        ]
        replies: list[Any] = [None] * len(commands)
        failed: list[OSError] = []
        for share, answer in zip(shares.values(), await asyncio.gather(*asked), strict=True):
            if isinstance(answer, OSError):
                failed.append(answer)
                answer = [answer] * len(share)  # noqa: PLW2901 - one error for each
            for index, reply in zip(share, answer, strict=True):
                replies[index] = reply
        if failed and len(failed) == len(shares):
            raise failed[0]
        return replies

    async def _ask_node(self, node: _Node, commands: Sequence[Command]) -> list[Any] | OSError:
        loop = asyncio.get_running_loop()
        started = loop.time()
        if not node.breaker.allows(started):
            self._is_stale = True
            return ConnectionError("the node of these keys is left alone for a while")
        try:
            replies = await node.pipe.execute(commands)
        except OSError as error:
            node.breaker.failed(now=loop.time())
            self._is_stale = True
            return error
        now = loop.time()
        node.breaker.succeeded(now=now, duration=now - started)
        if any(_is_elsewhere(reply) for reply in replies):
            self._is_stale = True
        return replies

    async def _look(self) -> None:
        """Ask who owns which slots, at most once a second while an answer is known."""
        async with self._looking:
            now = asyncio.get_running_loop().time()
            if not self._is_stale or (self._owners and now < self._look_at):
                return
            self._look_at = now + _LOOK_AGAIN
            urls = [*self._nodes, *(url for url in self._servers.urls if url not in self._nodes)]
            for url in urls:
                if await self._look_at_node(url):
                    self._is_stale = False
                    return
            if not self._owners:
                raise ConnectionError("no node of the cluster says who owns the slots")

    async def _look_at_node(self, url: str) -> bool:
        """Learn the owners from one node; tell whether it knew them all."""
        loop = asyncio.get_running_loop()
        node, started = self._node(url), loop.time()
        if not node.breaker.allows(started):
            return False
        try:
            (reply,) = await node.pipe.execute([("CLUSTER", "SLOTS")])
        except OSError:
            node.breaker.failed(now=loop.time())
            return False
        # Else the one call that may find out whether a node is back would be used up.
        node.breaker.succeeded(now=loop.time(), duration=loop.time() - started)
        owners: list[_Node | None] = [None] * _SLOTS
        for slots in _ranges(reply):
            host = slots.host or self._servers.host_of(url)
            owner = self._node(self._servers.url_of(host, slots.port))
            owners[slots.first : slots.last + 1] = [owner] * (slots.last + 1 - slots.first)
        known = [owner for owner in owners if owner is not None]
        if len(known) < _SLOTS:
            return False
        self._owners = known
        return True

    def _node(self, url: str) -> _Node:
        node = self._nodes.get(url)
        if node is None:
            node = self._nodes[url] = self._make(url)
        return node


class _Range(NamedTuple):
    """Slots, both ends included, and the server that has them; no host: the one that was asked."""

    first: int
    last: int
    host: str
    port: int


def _ranges(reply: object) -> Iterator[_Range]:
    """Yield what can be read of a reply to `CLUSTER SLOTS`."""
    for each in reply if isinstance(reply, list) else []:
        match each:
            case [int(first), int(last), [bytes() | None as host, int(port), *_], *_] if (
                0 <= first <= last < _SLOTS and (host or b"").isascii()
            ):
                yield _Range(first, last, (host or b"").decode(), port)
            case _:
                pass


def _apart(command: Command) -> list[Command]:
    if command[0] == b"MGET":
        return [(b"GET", name) for name in command[1:]]
    return [command]


def _key_at(command: Command) -> int:
    """Return the place of a command's first key; that of a script comes after their number."""
    return 3 if command[0] == b"EVAL" else 1


def _value(reply: object) -> object:
    """Return the value that `GET` replied with; none where it failed."""
    return None if isinstance(reply, Exception) else reply


def _is_elsewhere(reply: object) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith(("MOVED", "ASK", "CLUSTERDOWN"))


def _bytes(key: bytes | str | int) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()
