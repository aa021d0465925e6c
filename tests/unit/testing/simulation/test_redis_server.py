"""The simulated Redis follows its clock, loses what it is told to, and repeats itself exactly."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.gateway.rate_limit.script import TAKE
from testing.simulation.redis_server.data import RedisData
from testing.simulation.redis_server.server import RedisServer, Refusal
from tests.support.clock import Clock
from tests.support.simulated_redis import SimulatedClient, pack_commands, simulated_redis

SET_IN_SCRIPT = "return redis.call('SET', KEYS[1], ARGV[1])"


def test_a_key_expires_when_the_clock_has_passed_its_end() -> None:
    clock = Clock(1_000.0)
    client = SimulatedClient(RedisServer(RedisData(clock=clock)))
    client.call("SET", "key", "value", "PX", 5_000)

    clock.advance(5.0)
    before = client.call("GET", "key"), client.call("PTTL", "key")
    clock.advance(0.001)

    assert before == (b"value", 0)
    assert (client.call("GET", "key"), client.call("PTTL", "key")) == (None, -2)


def test_the_length_of_a_life_is_raised_only_with_gt() -> None:
    clock = Clock(1_000.0)
    client = SimulatedClient(RedisServer(RedisData(clock=clock)))
    client.call("SET", "key", "value", "PX", 5_000)

    answers = [client.call("PEXPIRE", "key", life, "GT") for life in (5_000, 6_000, 4_000)]

    assert answers == [0, 1, 0]
    assert client.call("PTTL", "key") == 6_000


def test_scripts_see_the_time_of_the_servers_clock() -> None:
    clock = Clock(1_000.25)
    client = SimulatedClient(RedisServer(RedisData(clock=clock)))
    take = ("EVAL", TAKE, 1, "bucket", "worker", 10, 100, 50, 60, 0, 0, 0, 0, 0, -1, 0, "")

    client.call(*take)
    clock.advance(10.0)

    assert client.call("EVAL", "return redis.call('TIME')", 0) == [b"1010", b"250000"]
    assert client.call(*take)[2] == b"0.000000"  # 100 - 60 + 10 s at 2/s - 60


def test_a_restored_snapshot_has_nothing_of_what_came_later() -> None:
    data = RedisData(clock=Clock(1_000.0))
    client = SimulatedClient(RedisServer(data))
    client.send(
        ("SET", "text", "old"),
        ("RPUSH", "list", "a"),
        ("HSET", "hash", "field", "a"),
        ("SADD", "set", "a"),
        ("ZADD", "sorted", 1, "a"),
        ("XADD", "stream", "1-1", "field", "a"),
        ("XGROUP", "CREATE", "stream", "group", "0"),
    )
    everything = [
        ("GET", "text"),
        ("PTTL", "text"),
        ("LRANGE", "list", 0, -1),
        ("HGETALL", "hash"),
        ("SMEMBERS", "set"),
        ("ZRANGE", "sorted", 0, -1, "WITHSCORES"),
        ("XRANGE", "stream", "-", "+"),
        ("XINFO", "GROUPS", "stream"),
        ("DBSIZE",),
    ]
    then = [client.call(*words) for words in everything]

    saved = data.snapshot()
    client.send(
        ("SET", "text", "new", "PX", 1_000),
        ("RPUSH", "list", "b"),
        ("HSET", "hash", "field", "b"),
        ("SADD", "set", "b"),
        ("ZADD", "sorted", 2, "a"),
        ("XREADGROUP", "GROUP", "group", "consumer", "STREAMS", "stream", ">"),
        ("XADD", "stream", "2-1", "field", "b"),
        ("SET", "other", "new"),
    )
    data.restore(saved)

    restarted = SimulatedClient(RedisServer(data))
    assert [restarted.call(*words) for words in everything] == then


def test_a_server_that_starts_again_has_its_data_but_no_scripts() -> None:
    data = RedisData(clock=Clock())
    client = SimulatedClient(RedisServer(data))
    digest = client.call("SCRIPT", "LOAD", SET_IN_SCRIPT)
    client.call("EVALSHA", digest, 1, "key", "value")

    restarted = SimulatedClient(RedisServer(data))

    assert restarted.call("GET", "key") == b"value"
    assert str(restarted.call("EVALSHA", digest, 1, "key", "value")).startswith("NOSCRIPT")


def test_a_server_that_loads_its_data_refuses_commands() -> None:
    server = simulated_redis()
    client = SimulatedClient(server)
    server.refusal = Refusal.LOADING

    replies = [
        str(client.call(*words)).partition(" ")[0]
        for words in [("PING",), ("GET", "a"), ("MGET", "a"), ("EVAL", "return 1", 0)]
    ]

    assert replies == ["LOADING"] * 4
    assert client.call("HELLO", 3)[b"proto"] == 3


def test_a_script_that_has_written_is_not_refused_memory() -> None:
    server = simulated_redis()
    client = SimulatedClient(server)
    server.refusal = Refusal.OUT_OF_MEMORY

    refused = client.call("EVAL", SET_IN_SCRIPT, 1, "key", "a")
    allowed = client.call("EVAL", "redis.call('DEL', 'other') " + SET_IN_SCRIPT, 1, "key", "b")

    assert str(refused).startswith("OOM")
    assert allowed == b"OK"


def test_a_command_that_the_server_does_not_know_fails_loudly() -> None:
    client = SimulatedClient(simulated_redis())

    with pytest.raises(NotImplementedError, match="LPOS"):
        client.send(("LPOS", "list", "a"))
    with pytest.raises(NotImplementedError, match="KEEPTTL"):
        client.send(("SET", "key", "value", "KEEPTTL"))


def test_a_server_ends_with_what_it_does_not_know() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(simulated_redis().serve(listener))
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(pack_commands(("LPOS", "list", "a")))
            await asyncio.wait([serving])
            writer.close()
            await serving

    with pytest.raises(NotImplementedError, match="LPOS"):
        asyncio.run(run())


def test_a_script_leaves_no_globals() -> None:
    client = SimulatedClient(simulated_redis())

    reply = client.call("EVAL", "counter = 1", 0)

    assert "global variable counter" in str(reply)


def test_a_closed_connection_gets_no_messages() -> None:
    server = simulated_redis()
    reader, writer = SimulatedClient(server), SimulatedClient(server)
    reader.send(("SUBSCRIBE", "channel"))

    reader.close()

    assert writer.call("PUBLISH", "channel", "message") == 0


_MANY = """
import sys
from tests.support.simulated_redis import SimulatedClient, simulated_redis
server = simulated_redis()
clients = [SimulatedClient(server) for _ in range(20)]
names = [f"name {number}" for number in range(200)]
for client in clients:
    client.send(("SUBSCRIBE", "a", "b"))
clients[3].send(("UNSUBSCRIBE",))
writer = SimulatedClient(server)
writer.send(
    ("SADD", "set", *names),
    ("SREM", "set", *names[::3]),
    ("HSET", "hash", *(word for name in names for word in (name, 1))),
    ("SMEMBERS", "set"),
    ("HGETALL", "hash"),
    ("EVAL", "return redis.call('HGETALL', 'hash')", 0),
    ("EVAL", "local t = {} for k in pairs({a=1, b=2, c=3, d=4}) do t[#t + 1] = k end return t", 0),
    ("XGROUP", "CREATE", "stream", "group", "$", "MKSTREAM"),
    ("PUBLISH", "a", "message"),
)
readers = [SimulatedClient(server) for _ in names[:20]]
for reader, name in zip(readers, names):
    reader.send(("XREADGROUP", "GROUP", "group", name, "BLOCK", 0, "STREAMS", "stream", ">"))
writer.send(("XADD", "stream", "*", "a", 1), ("XPENDING", "stream", "group"))
print([client.receive() for client in (writer, *clients)])
"""


def test_replies_do_not_depend_on_hashes() -> None:
    root = Path(__file__).parents[4]

    outputs = [
        subprocess.run(
            [sys.executable, "-c", _MANY],
            cwd=root,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    ]

    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"message") > 20
