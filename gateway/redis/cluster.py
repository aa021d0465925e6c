"""Sends each command to the node of a Redis Cluster that owns its key."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from redis.crc import key_slot

from sluicegate.gateway.redis.circuit_breaker import CircuitBreaker
from sluicegate.gateway.redis.pipeline import Command, Replies, StandaloneClient
from sluicegate.gateway.redis.url import Servers
from sluicegate.gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive

_REFRESH_INTERVAL = 1.0
"""Minimum seconds between two reads of the slot map."""
_FAILURES = 3
"""This many consecutive failures open a node's circuit breaker. The circuit breaker of the whole
cache tier needs more failures."""
_SLOTS = 16_384


class _Node:
    """Holds the connection to a node and its circuit breaker."""

    def __init__(self, url: str, *, timeout: float, slow: float, keepalive: TcpKeepalive) -> None:
        self.client = StandaloneClient(url, timeout=timeout, keepalive=keepalive)
        self.breaker = CircuitBreaker(failures=_FAILURES, slow=slow)


class ClusterClient:
    """Runs commands on a cluster. The first key of a command or script determines the node.

    The keys of an `MGET` can be in several slots. Therefore each node gets a pipeline of `GET`
    commands for its own keys. If a node fails, only the commands for its keys fail. If all nodes
    fail, the call fails. If a node takes longer than `slow` seconds, its circuit breaker records a
    failure.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        timeout: float,
        slow: float,
        keepalive: TcpKeepalive = DEFAULT_KEEPALIVE,
    ) -> None:
        self._servers = servers
        self._make = partial(_Node, timeout=timeout, slow=slow, keepalive=keepalive)
        self._nodes: dict[str, _Node] = {}
        self._owners: list[_Node] = []
        self._refreshing = asyncio.Lock()
        self._refresh_at = 0.0
        self._is_stale = True

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Return the reply to each command. The reply of a failed command is its error.

        Raises:
            OSError: no node can be reached.
        """
        if self._is_stale:
            await self._refresh_owners()
        single = [part for command in commands for part in _split_command(command)]
        replies = iter(await self._execute_by_node(single))
        return [
            [_value(next(replies)) for _ in command[1:]] if command[0] == b"MGET" else next(replies)
            for command in commands
        ]

    def execute_nowait(
        self, commands: Sequence[Command], on_done: Callable[[Replies], object]
    ) -> bool:
        """Return `False`, because commands for several nodes can be sent only in a task."""
        return False

    async def aclose(self) -> None:
        """Close every connection."""
        for node in self._nodes.values():
            await node.client.aclose()

    async def _execute_by_node(self, commands: Sequence[Command]) -> list[Any]:
        """Return the reply to each command, or the error of its node.

        Each command must have one key.
        """
        indexes_by_node: dict[_Node, list[int]] = {}
        for index, command in enumerate(commands):
            slot = key_slot(_bytes(command[at])) if len(command) > (at := _key_at(command)) else 0
            indexes_by_node.setdefault(self._owners[slot], []).append(index)
        calls = [
            self._execute_on(node, [commands[index] for index in indexes])
            for node, indexes in indexes_by_node.items()
        ]
        replies: list[Any] = [None] * len(commands)
        failed: list[OSError] = []
        for indexes, answer in zip(
            indexes_by_node.values(), await asyncio.gather(*calls), strict=True
        ):
            if isinstance(answer, OSError):
                failed.append(answer)
                answer = [answer] * len(indexes)  # noqa: PLW2901 - one error for each
            for index, reply in zip(indexes, answer, strict=True):
                replies[index] = reply
        if failed and len(failed) == len(indexes_by_node):
            raise failed[0]
        return replies

    async def _execute_on(self, node: _Node, commands: Sequence[Command]) -> list[Any] | OSError:
        loop = asyncio.get_running_loop()
        started = loop.time()
        if not node.breaker.allows(started):
            self._is_stale = True
            return ConnectionError("the circuit breaker of the keys' node is open")
        try:
            replies = await node.client.execute(commands)
        except OSError as error:
            node.breaker.failed(now=loop.time())
            self._is_stale = True
            return error
        now = loop.time()
        node.breaker.succeeded(now=now, duration=now - started)
        if any(_is_redirect(reply) for reply in replies):
            self._is_stale = True
        return replies

    async def _refresh_owners(self) -> None:
        """Read the slot map. If the client has a slot map already, do so at most once a second."""
        async with self._refreshing:
            now = asyncio.get_running_loop().time()
            if not self._is_stale or (self._owners and now < self._refresh_at):
                return
            self._refresh_at = now + _REFRESH_INTERVAL
            urls = [*self._nodes, *(url for url in self._servers.urls if url not in self._nodes)]
            for url in urls:
                if await self._read_owners(url):
                    self._is_stale = False
                    return
            if not self._owners:
                raise ConnectionError("no node of the cluster returned a complete slot map")

    async def _read_owners(self, url: str) -> bool:
        """Read the slot map from one node; return whether it was complete."""
        replies = await self._execute_on(self._node(url), [("CLUSTER", "SLOTS")])
        if isinstance(replies, OSError):
            return False
        owners: list[_Node | None] = [None] * _SLOTS
        for slots in slot_ranges(replies[0]):
            host = slots.host or self._servers.host_of(url)
            owner = self._node(self._servers.url_of(host, slots.port))
            owners[slots.first : slots.last + 1] = [owner] * (slots.last + 1 - slots.first)
        complete = [owner for owner in owners if owner is not None]
        if len(complete) < _SLOTS:
            return False
        self._owners = complete
        return True

    def _node(self, url: str) -> _Node:
        node = self._nodes.get(url)
        if node is None:
            node = self._nodes[url] = self._make(url)
        return node


class SlotRange(NamedTuple):
    """Holds a range of slots and the node that owns them.

    An empty host means the node that replied.
    """

    first: int
    last: int
    host: str
    port: int


def slot_ranges(reply: object) -> Iterator[SlotRange]:
    """Yield the valid entries of a reply to `CLUSTER SLOTS`."""
    for each in reply if isinstance(reply, list) else []:
        match each:
            case [int(first), int(last), [bytes() | None as host, int(port), *_], *_] if (
                0 <= first <= last < _SLOTS and (host or b"").isascii()
            ):
                yield SlotRange(first, last, (host or b"").decode(), port)
            case _:
                pass


def _split_command(command: Command) -> list[Command]:
    if command[0] == b"MGET":
        return [(b"GET", name) for name in command[1:]]
    return [command]


def _key_at(command: Command) -> int:
    """Return the index of a command's first key. A script's keys follow the number of keys."""
    return 3 if command[0] in (b"EVAL", b"EVALSHA") else 1


def _value(reply: object) -> object:
    """Return the value in a reply to `GET`, or `None` if the reply is an error."""
    return None if isinstance(reply, Exception) else reply


def _is_redirect(reply: object) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith(("MOVED", "ASK", "CLUSTERDOWN"))


def _bytes(key: bytes | str | int) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()
