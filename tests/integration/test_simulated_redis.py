"""The simulated Redis answers as a real server does, to all that the product sends."""

import asyncio
import re
import socket
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import hiredis
import pytest
from hypothesis import given, settings, strategies as st
from typing_extensions import override

from sluicegate.gateway.cache import claims
from sluicegate.gateway.idempotency import store
from sluicegate.gateway.rate_limit.script import TAKE
from sluicegate.gateway.runtime import control_scripts
from sluicegate.gateway.workers import stream
from testing.simulation.redis_server.server import Refusal
from testing.valkey import Valkey
from testing.waiting import eventually
from tests.support.simulated_redis import (
    Word,
    Words,
    pack_commands,
    simulated_redis,
)

SCRIPTS = {
    "publish": control_scripts.PUBLISH,
    "restore": control_scripts.RESTORE,
    "start-history": control_scripts.START_PURGE_HISTORY,
    "heartbeat": control_scripts.HEARTBEAT,
    "live": control_scripts.LIVE_WORKERS,
    "replace": claims._REPLACE.decode(),
    "release": claims._RELEASE.decode(),
    "ship": stream._SHIP,
    "end": stream._END,
    "idempotency": store._SCRIPT,
    "take": TAKE,
    "reply": "return {1, 2.9, false, 'x', {ok = 'fine'}, {1, {2}}, true, nil, 3}",
    "status": "return redis.status_reply('fine')",
    "error": "return redis.error_reply('MINE own')",
    "nothing": "return",
    "call": "return redis.call(unpack(ARGV))",
    "pcall": "return redis.pcall(unpack(ARGV)).err and 1",
    "half": "redis.call('SET', KEYS[1], 1) return redis.call('INCRBY', KEYS[1], 'x')",
    "global": "x = 1",
    "syntax": "return (",
}
_NOTHING = object()
# Both servers read the time and number entries from keys, so that they cannot differ.
_REPLACED = {
    "redis.call('TIME')": "redis.call('LRANGE', 'clock', 0, -1)",
    "'*'": "redis.call('INCR', 'entries') .. '-1'",
}
VALUES: dict[str, Sequence[str]] = {
    "text": ("a", "b", "", "17", "-3", "\r\n", "é", "9223372036854775807", "1.5"),
    "number": ("0", "1", "2", "-1", "-2", "3", "5", "100"),
    "field": ("f1", "f2", "f3"),
    "member": ("a", "b", "c", "9"),
    "id": ("0", "0-0", "5-1", "7", "9-3", "12-0", "3-1", "4-1", "20-1", "x"),
    "end": (">", ">", "0", "4-1"),
    "group": ("g1", "g2"),
    "consumer": ("c1", "c2"),
    "string": ("s1", "s2", "h1"),
    "list": ("l1", "l2", "s1"),
    "hash": ("h1", "h2", "l1"),
    "set": ("m1", "m2", "h1"),
    "sorted": ("z1", "z2", "m1"),
    "stream": ("x1", "x2", "z1"),
    "key": ("s1", "l1", "h1", "m1", "z1", "x1", "x2"),
    "life": ("100000000", "200000000", "0", "-1", "x"),
    "long": ("100000", "0", "-1"),
    "former": ("0:0,", "5:10,", "2:30,8:1000,"),
    "seconds": ("1000000", "1000015", "1000070", "1000200"),
    "owner": ("o" * 16, "p" * 16),
    "print": ("e" * 16, "f" * 16),
    "sha1": (
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",  # of the empty text
        "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8",  # of `a`
    ),
    "name": ("n1", "n2", "n3", "n4"),
    "action": ("claim", "claim", "renew", "finish"),
    "capacity": ("10", "20", "7.5"),
    "refill": ("60", "0", "1000060:1000120", "1"),
    "flag": ("0", "1"),
    "start": ("-1", "-1", "3"),
}
FAMILIES: dict[str, Sequence[str]] = {
    "keys": (
        "DEL {key} {key}",
        "DBSIZE",
        "FLUSHALL",
        "PEXPIRE {key} {life}",
        "PEXPIRE {key} 5000 GT",
        "PEXPIREAT {key} 1000",
        "PEXPIREAT {key} 9999999999999",
        "PEXPIREAT {key} 9999999999999 GT",
        "EXPIRE {key} {long}",
        "PTTL {key}",
    ),
    "strings": (
        "GET {string}",
        "SET {string} {text}",
        "SET {string} {text} NX PX 100000000",
        "SET {string} {text} PX {life}",
        "MGET {string} {string} {key}",
        "INCR {string}",
        "INCRBY {string} {number}",
        "DECRBY {string} {number}",
        "GET",
    ),
    "lists": (
        "LPUSH {list} {text} {text}",
        "RPUSH {list} {text}",
        "LRANGE {list} {number} {number}",
        "LTRIM {list} {number} {number}",
    ),
    "hashes": (
        "HSET {hash} {field} {text}",
        "HSET {hash} {field} {text} {field} {text}",
        "HSET {hash} {field} {text} {field}",
        "HGET {hash} {field}",
        "HMGET {hash} {field} {field}",
        "HGETALL {hash}",
        "HSTRLEN {hash} {field}",
        "HDEL {hash} {field} {field}",
        "HINCRBY {hash} {field} {number}",
    ),
    "sets": (
        "SADD {set} {text} {text}",
        "SREM {set} {text} {text}",
        "SMEMBERS {set}",
        "ZADD {sorted} {number} {member}",
        "ZADD {sorted} {number} {member} {text} {member}",
        "ZREM {sorted} {member}",
        "ZCARD {sorted}",
        "ZRANGE {sorted} {number} {number}",
        "ZRANGE {sorted} {number} {number} WITHSCORES",
        "ZRANGEBYSCORE {sorted} -inf {number}",
        "ZRANGEBYSCORE {sorted} {number} +inf",
    ),
    "streams": (
        "XADD {stream} {id} {field} {text}",
        "XADD {stream} {id} {field} {text} {field}",
        "XLEN {stream}",
        "XRANGE {stream} - +",
        "XRANGE {stream} {id} {id} COUNT {number}",
        "XREVRANGE {stream} + -",
        "XREVRANGE {stream} {id} {id} COUNT {number}",
        "XTRIM {stream} MINID {id}",
        "XTRIM {stream} MINID = {id}",
        "XGROUP CREATE {stream} {group} {id}",
        "XGROUP CREATE {stream} {group} 0 MKSTREAM",
        "XGROUP CREATE {stream} {group} $ MKSTREAM",
        "XREADGROUP GROUP {group} {consumer} STREAMS {stream} {end}",
        "XREADGROUP GROUP {group} {consumer} COUNT 2 STREAMS {stream} {end}",
        "XREADGROUP GROUP {group} {consumer} COUNT 1 BLOCK 1 STREAMS {stream} {end}",
        "XACK {stream} {group} {id} {id}",
        "XPENDING {stream} {group}",
        "XAUTOCLAIM {stream} {group} {consumer} 0 {id}",
        "XAUTOCLAIM {stream} {group} {consumer} 0 0-0 COUNT 1",
        "XAUTOCLAIM {stream} {group} {consumer} 100000000 0-0 COUNT 2",
        "XINFO GROUPS {stream}",
    ),
    "transactions": (
        "MULTI",
        "EXEC",
        "EXEC",
        "INCR s1",
        "HINCRBY h1 f1 1",
        "SADD m1 {member}",
        "PUBLISH channel message",
        "GET",
        "PING",
    ),
    "scripts": (
        "script:reply 0",
        "script:status 0",
        "script:error 0",
        "script:nothing 0",
        "script:call 0 GET {key}",
        "script:call 0 HGETALL h1",
        "script:call 0 ZRANGE z1 0 -1 WITHSCORES",
        "script:call 0 XRANGE x1 - +",
        "script:pcall 0 GET {key}",
        "script:half 1 {string}",
        "script:global 0",
        "script:syntax 0",
        "script:nothing 2 a",
        "script:nothing -1 a",
        "EVALSHA 0000 0",
        "SCRIPT LOAD",
    ),
    "control": (
        "script:publish 3 generation active history {number} {number} {text} 3 channel",
        (
            "script:restore 5 generation active history drained version {number} {number} 2 channel"
            " d1 d2 b1"
        ),
        "script:restore 5 generation active history drained version {number} {number} 1 channel d1",
        "script:start-history 2 version lineage {number} {text} channel {text}",
        "script:heartbeat 2 workers reports {consumer} {text} 5",
        "script:heartbeat 4 workers reports {hash} h2 {consumer} {text} 5",
        "script:live 1 workers 5",
        "LRANGE history 0 -1",
        "HGETALL reports",
        "ZRANGE workers 0 -1 WITHSCORES",
        "clock {seconds}",
    ),
    "cache": (
        "SET s1 {member} NX PX 100000000",
        "MGET s1 s2",
        "script:replace 1 {string} {sha1} {member} 100000000",
        "script:release 1 {string} {member}",
    ),
    "events": (
        "script:ship 2 x1 shipped 3 log  1 field {text}",
        "script:ship 2 x1 shipped 5 log 1 2 field {text}",
        "script:ship 2 x1 shipped 5 log 2 3 field {text}",
        "script:end 1 x1",
        "XGROUP CREATE x1 g1 0 MKSTREAM",
        "XGROUP CREATE x1 g2 1-1",
        "XREADGROUP GROUP g1 {consumer} STREAMS x1 {end}",
        "XACK x1 g1 1-1 2-1",
        "XTRIM x1 MINID = 2-1",
        "XINFO GROUPS x1",
        "HMGET shipped log other",
    ),
    "idempotency": (
        (
            "script:idempotency 3 records index total {action} {name} {owner} 20000 100000 3 900"
            " {print}"
        ),
        (
            "script:idempotency 3 records index total {action} {name} {owner} 20000 100000 9 5000"
            " {print}"
        ),
        "HGETALL records",
        "ZRANGE index 0 -1 WITHSCORES",
        "GET total",
        "clock {seconds}",
    ),
    "limits": (
        (
            "script:take 1 b1 {consumer} 10 {capacity} {refill} {number} {number} {flag} {flag}"
            " {flag} {flag} {start} 0 {former}"
        ),
        "script:take 2 b1 b2 {consumer} 10 10 60 2 1 0 0 0 0 -1 0 0:0, 10 0 2 1 0 0 1 0 -1 0 0:0,",
        "HGETALL b1",
        "PEXPIRE b1 100000000",
        "PTTL b1",
        "clock {seconds}",
    ),
}


def fill(template: str) -> st.SearchStrategy[list[Words]]:
    """Return a strategy for the commands of a template, whose words in braces are values."""
    words = [
        st.sampled_from(VALUES[word[1:-1]]) if word[:1] == "{" else st.just(word)
        for word in template.split(" ")
    ]
    return st.tuples(*words).map(_commands)


def _commands(words: tuple[str, ...]) -> list[Words]:
    head, *rest = words
    if head == "clock":
        return [("DEL", "clock"), ("RPUSH", "clock", *rest, "250000")]
    if not head.startswith("script:"):
        return [words]
    script = SCRIPTS[head.removeprefix("script:")]
    for ours, replaced in _REPLACED.items():
        script = script.replace(ours, replaced)
    return [("EVAL", script, *rest)]


def without_nested_transactions(commands: Iterable[Words]) -> Iterator[Words]:
    """Yield commands, but no `MULTI` in a transaction, about which servers do not agree."""
    is_open = False
    for words in commands:
        if words[0] != "MULTI" or not is_open:
            yield words
        is_open = words[0] == "MULTI" or (is_open and words[0] != "EXEC")


sequences = (
    st.lists(st.sampled_from(sorted(FAMILIES)), min_size=1, max_size=3, unique=True)
    .map(lambda names: [fill(template) for name in names for template in FAMILIES[name]])
    .flatmap(lambda fills: st.lists(st.one_of(fills), max_size=60))
    .map(chain.from_iterable)
    .map(lambda words: [("RPUSH", "clock", 1_000_000, 5), *without_nested_transactions(words)])
)


def comparable(commands: Sequence[Words], replies: Sequence[Any]) -> list[Any]:
    """Return the replies without what servers need not agree about.

    This is the text of an error after its code, the order of sets, and some milliseconds.
    """
    found: list[Any] = []
    queued: list[Words] | None = None
    for words, reply in zip(commands, replies, strict=True):
        if words[0] == "EXEC" and queued is not None and isinstance(reply, list):
            found.append([_comparable(*pair) for pair in zip(queued, reply, strict=True)])
        else:
            found.append(_comparable(words, reply))
        if words[0] in ("MULTI", "EXEC"):
            queued = [] if words[0] == "MULTI" else None
        elif queued is not None:
            queued.append(words)
    return found


def _flat(group: Any) -> list[Any]:
    return list(chain.from_iterable(group.items())) if isinstance(group, dict) else group


def _comparable(words: Words, reply: Any) -> Any:
    if isinstance(reply, Exception):
        return f"error {str(reply).partition(' ')[0]}"
    if words[0] == "SMEMBERS" and isinstance(reply, list | set):
        return sorted(reply)
    if words[0] == "XINFO":
        # Redis before 7.2 creates a consumer with its first entry.
        groups = [_flat(group) for group in reply]
        return [
            group[: group.index(b"consumers")] + group[group.index(b"pending") :]
            for group in groups
        ]
    if words[0] == "PTTL" and isinstance(reply, int):
        return round(reply, -7)
    return [_comparable(("",), each) for each in reply] if isinstance(reply, list) else reply


class Client:
    """A connection to a server of either kind."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._replies = hiredis.Reader(notEnoughData=_NOTHING)

    def send(self, *commands: Words) -> None:
        """Send commands together."""
        self._writer.write(pack_commands(*commands))

    async def next(self) -> Any:
        """Return the next reply or message. An error is returned, too."""
        while (reply := self._replies.gets()) is _NOTHING:
            self._replies.feed(await self._reader.read(65_536))
        return reply

    async def call(self, *words: Word) -> Any:
        """Send a command and return its reply."""
        self.send(words)
        return await self.next()

    async def aclose(self) -> None:
        """Close the connection."""
        self._writer.close()
        await self._writer.wait_closed()


class Server:
    """A simulated or a real server."""

    def __init__(self) -> None:
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        """Open a connection. `aclose` closes it."""
        client = await self._connect()
        self._clients.append(client)
        return client

    async def aclose(self) -> None:
        """Close all connections."""
        while self._clients:
            await self._clients.pop().aclose()

    async def replies(self, commands: Sequence[Words]) -> list[Any]:
        """Return the replies to commands that are sent together."""
        client = await self.connect()
        client.send(*commands)
        try:
            return [await client.next() for _ in commands]
        finally:
            await self.aclose()

    @abstractmethod
    async def _connect(self) -> Client: ...

    @abstractmethod
    def refuse(self, refusal: Refusal) -> None:
        """Refuse commands from now on."""


class SimulatedServer(Server):
    """A simulated server, with a pair of sockets for each connection."""

    def __init__(self) -> None:
        super().__init__()
        self._server = simulated_redis()
        self._transports: list[asyncio.Transport] = []

    @override
    async def _connect(self) -> Client:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(self._server.protocol, sock=theirs)
        self._transports.append(transport)
        return Client(*await asyncio.open_unix_connection(sock=ours))

    @override
    async def aclose(self) -> None:
        await super().aclose()
        while self._transports:
            self._transports.pop().abort()
        await asyncio.sleep(0)

    @override
    def refuse(self, refusal: Refusal) -> None:
        self._server.refusal = refusal


class RealServer(Server):
    """A real server."""

    def __init__(self, valkey: Valkey) -> None:
        super().__init__()
        self._valkey = valkey

    @override
    async def _connect(self) -> Client:
        return Client(*await asyncio.open_unix_connection(str(self._valkey.socket)))

    @override
    def refuse(self, refusal: Refusal) -> None:
        match refusal:
            case Refusal.OUT_OF_MEMORY:
                self._valkey.configure("maxmemory", "1")
            case Refusal.NO_REPLICAS:
                self._valkey.configure("min-replicas-to-write", "1")
            case Refusal.READONLY:
                assert self._valkey.ask("REPLICAOF 127.0.0.1 1") == b"+OK\r\n"
            case Refusal.LOADING:
                raise NotImplementedError


@settings(max_examples=100)
@given(commands=sequences, version=st.sampled_from([2, 3]))
def test_replies_are_those_of_a_real_server(
    valkey_server: Valkey, commands: list[Words], version: int
) -> None:
    everything: list[Words] = [("FLUSHALL",), ("HELLO", version), *commands]

    real = asyncio.run(RealServer(valkey_server).replies(everything))[2:]
    simulated = asyncio.run(SimulatedServer().replies(everything))[2:]

    assert comparable(commands, simulated) == comparable(commands, real)


REFUSED = (
    ("SET", "key", "b"),
    ("DEL", "other"),
    ("INCR", "number"),
    ("PEXPIRE", "key", 1_000_000),
    ("HDEL", "hash", "field"),
    ("SREM", "set", "member"),
    ("ZREM", "sorted", "member"),
    ("LTRIM", "list", 0, 1),
    ("XADD", "stream", "*", "field", 1),
    ("XTRIM", "stream", "MINID", 1),
    ("XGROUP", "CREATE", "stream", "group", 0, "MKSTREAM"),
    ("XREADGROUP", "GROUP", "group", "consumer", "STREAMS", "stream", ">"),
    ("XACK", "stream", "group", 1),
    ("XAUTOCLAIM", "stream", "group", "consumer", 0, 0),
    ("GET", "key"),
    ("PUBLISH", "channel", "message"),
    ("EVAL", "return redis.call('GET', 'key')", 0),
    ("EVAL", "return redis.call('SET', 'key', 'c')", 0),
    ("EVAL", "redis.call('DEL', 'other') return redis.call('SET', 'key', 'd')", 0),
    ("EVAL", "return redis.pcall('SET', 'key', 'c').err and 1", 0),
    ("MULTI",),
    ("SET", "key", "e"),
    ("EXEC",),
    ("FLUSHALL",),
)


@pytest.mark.parametrize("refusal", [Refusal.OUT_OF_MEMORY, Refusal.NO_REPLICAS, Refusal.READONLY])
def test_a_server_in_trouble_refuses_what_a_real_one_refuses(refusal: Refusal) -> None:
    async def replies(server: Server) -> list[Any]:
        await server.replies([("SET", "key", "a")])
        server.refuse(refusal)
        return await server.replies(REFUSED)

    with Valkey() as own:
        real = asyncio.run(replies(RealServer(own)))

    simulated = asyncio.run(replies(SimulatedServer()))
    assert comparable(REFUSED, simulated) == comparable(REFUSED, real)


@pytest.fixture(params=["simulated", "real"])
async def server(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Server]:
    """A server of each kind, without keys."""
    if request.param == "simulated":
        server: Server = SimulatedServer()
    else:
        valkey: Valkey = request.getfixturevalue("valkey_server")
        valkey.flush()
        server = RealServer(valkey)
    yield server
    await server.aclose()


async def block(server: Server, consumer: str) -> Client:
    """Return a connection that waits for an entry of `stream`."""
    client, observer = await server.connect(), await server.connect()
    await observer.call("XGROUP", "CREATE", "stream", "group", "$", "MKSTREAM")
    known = await blocked(observer)
    client.send(("XREADGROUP", "GROUP", "group", consumer, "BLOCK", 0, "STREAMS", "stream", ">"))

    async def waits() -> bool:
        return await blocked(observer) > known

    await eventually(waits)
    return client


async def blocked(client: Client) -> int:
    lines: bytes = await client.call("INFO")
    (number,) = re.findall(rb"^blocked_clients:(\d+)", lines, re.MULTILINE)
    return int(number)


def entries(*numbers: int) -> list[Any]:
    return [[b"stream", [[b"%d-1" % n, [b"field", b"value"]] for n in numbers]]]


def add(number: int) -> Words:
    return ("XADD", "stream", f"{number}-1", "field", "value")


@pytest.mark.anyio
async def test_readers_get_entries_in_the_order_in_which_they_wait(server: Server) -> None:
    first, second = await block(server, "first"), await block(server, "second")
    writer = await server.connect()

    await writer.call(*add(1))
    one = await first.next()
    await writer.call(*add(2))

    assert (one, await second.next()) == (entries(1), entries(2))


@pytest.mark.anyio
async def test_a_reader_gets_all_entries_of_a_transaction(server: Server) -> None:
    reader = await block(server, "reader")
    writer = await server.connect()

    writer.send(("MULTI",), add(1), add(2), ("EXEC",))

    assert await reader.next() == entries(1, 2)


@pytest.mark.anyio
async def test_commands_after_a_wait_are_executed_after_it(server: Server) -> None:
    reader = await block(server, "reader")
    writer = await server.connect()
    reader.send(("GET", "key"))
    await writer.call("SET", "key", "value")

    await writer.call(*add(1))

    assert (await reader.next(), await reader.next()) == (entries(1), b"value")


@pytest.mark.anyio
async def test_a_wait_without_an_entry_ends_with_nothing(server: Server) -> None:
    client = await server.connect()
    client.send(
        ("XGROUP", "CREATE", "stream", "group", "$", "MKSTREAM"),
        ("XREADGROUP", "GROUP", "group", "c", "BLOCK", 1, "STREAMS", "stream", ">"),
        ("PING",),
    )

    assert [await client.next() for _ in range(3)] == [b"OK", None, b"PONG"]


@pytest.mark.anyio
@pytest.mark.parametrize("words", [("DEL", "stream"), ("FLUSHALL",), ("PEXPIRE", "stream", -1)])
async def test_a_reader_learns_that_its_stream_is_deleted(server: Server, words: Words) -> None:
    reader = await block(server, "reader")
    writer = await server.connect()

    await writer.call(*words)

    # Redis before 7.2 says UNBLOCKED.
    assert str(await reader.next()).startswith(("NOGROUP", "UNBLOCKED"))


@pytest.mark.anyio
async def test_subscribers_get_what_scripts_publish(server: Server) -> None:
    reader, writer = await server.connect(), await server.connect()
    reader.send(("SUBSCRIBE", "one", "two"), ("UNSUBSCRIBE", "two"), ("PING",))
    confirmed = [await reader.next() for _ in range(4)]

    count = await writer.call("EVAL", "return redis.call('PUBLISH', 'one', 'text')", 0)
    others = await writer.call("PUBLISH", "two", "text")

    assert confirmed[2:] == [[b"unsubscribe", b"two", 1], [b"pong", b""]]
    assert await reader.next() == [b"message", b"one", b"text"]
    assert (count, others) == (1, 0)
