"""Serves a simulated Redis on connections of an event loop."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import hiredis
from typing_extensions import override

import testing.simulation.redis_server.stream_commands  # noqa: F401 - registers the commands
from testing.simulation.redis_server.commands import COMMANDS, Arguments, Effect, integer
from testing.simulation.redis_server.data import RedisData
from testing.simulation.redis_server.resp import (
    OK,
    Absent,
    Push,
    RedisError,
    Reply,
    Status,
    encode,
)
from testing.simulation.redis_server.scripts import ScriptEngine
from testing.simulation.redis_server.stream_commands import Wait

_NOTHING: Final = object()
_QUEUED: Final = Status(b"QUEUED")
_WHILE_LOADING: Final = frozenset(
    b"HELLO CLIENT INFO TIME MULTI EXEC SUBSCRIBE UNSUBSCRIBE PUBLISH".split()
)
_NOT_IN_SCRIPTS: Final = frozenset((b"XREADGROUP",))
"""Commands that may return `Wait`, which a script never does."""


class Refusal(Enum):
    """Says which commands a server refuses, and with which error."""

    LOADING = "LOADING Redis is loading the dataset in memory"
    """It has just started: it refuses almost all commands."""
    READONLY = "READONLY You can't write against a read only replica."
    """It is a replica: it refuses writes."""
    NO_REPLICAS = "NOREPLICAS Not enough good replicas to write."
    """It refuses writes."""
    OUT_OF_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."
    """It refuses writes that may need more memory."""

    def refuses(self, name: bytes, effect: Effect) -> bool:
        """Return whether the server refuses the command `name`."""
        if self is Refusal.LOADING:
            return name not in _WHILE_LOADING
        return bool(effect & (Effect.GROWS if self is Refusal.OUT_OF_MEMORY else Effect.WRITES))


class RedisServer:
    """A server process. `data` can outlive it.

    After the process has ended, make a new server on the data: on the same data after a crash of
    the process, on an earlier snapshot after a power cut, and on empty data for a Redis that stores
    nothing on the disk.
    """

    def __init__(self, data: RedisData) -> None:
        self.data = data
        self.refusal: Refusal | None = None
        """Why the server refuses commands; `None` if it does not."""
        self.scripts = ScriptEngine()
        self.subscribers: dict[bytes, dict[RedisProtocol, None]] = {}
        """The connections by channel, in the order in which they have subscribed."""
        self.clients: dict[RedisProtocol, None] = {}
        self.waiting: dict[RedisProtocol, Wait] = {}
        """Blocked connections, in the order in which they have begun to wait."""
        self._served: deque[RedisProtocol] = deque()

    def protocol(self) -> "RedisProtocol":
        """Return the protocol for a new connection."""
        return RedisProtocol(self)

    async def serve(self, listener: socket.socket) -> None:
        """Serve the connections of `listener` until cancelled. The event loop must be its own.

        Raises:
            NotImplementedError: a client has sent what the simulated Redis does not know.
        """
        loop = asyncio.get_running_loop()
        failure: asyncio.Future[None] = loop.create_future()

        def fail(_: object, context: dict[str, Any]) -> None:
            if not failure.done():
                failure.set_exception(context.get("exception") or RuntimeError(context["message"]))

        loop.set_exception_handler(fail)
        async with await loop.create_server(self.protocol, sock=listener):
            await failure

    def call(self, name: bytes, arguments: Arguments) -> Reply:
        """Run a command on the data.

        Raises:
            RedisError: the command has failed.
            NotImplementedError: the simulated Redis does not know the command.
        """
        self.check(name, arguments)
        return COMMANDS[name].run(self.data, arguments)

    def check(self, name: bytes, arguments: Arguments) -> None:
        """Check whether the server executes a command now.

        Raises:
            RedisError: the number of arguments is wrong, or the server refuses the command.
            NotImplementedError: the simulated Redis does not know the command.
        """
        known = COMMANDS.get(name) or SESSION_COMMANDS.get(name)
        if known is None:
            raise NotImplementedError(f"the simulated Redis does not know {name.decode()}")
        least, most = known.least, known.most
        if len(arguments) < least or (most is not None and len(arguments) > most):
            text = name.decode().lower()
            raise RedisError(f"ERR wrong number of arguments for '{text}' command")
        if self.refusal is not None and self.refusal.refuses(name, known.effect):
            raise RedisError(self.refusal.value)

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message to all subscribers. Return their number."""
        subscribers = self.subscribers.get(channel, {})
        for client in subscribers:
            client.send(Push([b"message", channel, message]))
        return len(subscribers)

    def run_script(self, digest: bytes, arguments: Arguments) -> Reply:
        """Run a script. `arguments` begin with the number of keys.

        Raises:
            RedisError: the script has failed.
        """
        count = integer(arguments[0])
        rest = arguments[1:]
        if count < 0:
            raise RedisError("ERR Number of keys can't be negative")
        if count > len(rest):
            raise RedisError("ERR Number of keys can't be greater than number of args")
        return self.scripts.run(digest, rest[:count], rest[count:], _ScriptCalls(self).call)

    def wake(self) -> None:
        """Serve the blocked clients whose streams have changed."""
        changed, self.data.changed = self.data.changed, {}
        for client, wait in list(self.waiting.items()):
            if wait.key in changed and client.retry():
                self._served.append(client)

    def finish_turn(self) -> None:
        """Execute what clients have sent while they were blocked."""
        while self._served:
            self._served.popleft().execute_received()


class _ScriptCalls:
    """Runs the commands of one execution of a script."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._has_written = False

    def call(self, words: list[bytes]) -> Reply:
        """Run a command. A server that refuses writes lets a script finish that has written."""
        server, name, arguments = self._server, words[0].upper(), words[1:]
        if name == b"PUBLISH":
            return server.publish(*arguments)
        if name in _NOT_IN_SCRIPTS:
            raise NotImplementedError(f"the simulated Redis runs no {name.decode()} in scripts")
        refusal = server.refusal
        if self._has_written:
            server.refusal = None
        try:
            reply = server.call(name, arguments)
        finally:
            server.refusal = refusal
        self._has_written |= bool(COMMANDS[name].effect)
        return reply


class RedisProtocol(asyncio.Protocol):
    """A connection of a client."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._received: deque[list[bytes]] = deque()
        self._version = 2
        self._queued: list[list[bytes]] | None = None
        """The commands of an open transaction."""
        self._is_aborted = False
        self._channels: dict[bytes, None] = {}
        self._blocked: list[bytes] | None = None
        """The command that waits for an entry of a stream."""
        self._timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._server.clients[self] = None

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._unblock()
        self._server.clients.pop(self, None)
        for channel in self._channels:
            self._server.subscribers[channel].pop(self, None)
        self._received.clear()

    @override
    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._received.extend(iter(self._reader.gets, _NOTHING))
        self.execute_received()
        self._server.finish_turn()

    def send(self, reply: Reply) -> None:
        """Send a reply or a message."""
        self._transport.write(encode(reply, self._version))

    def execute_received(self) -> None:
        """Execute the commands that wait, unless the client is blocked."""
        while self._received and self._blocked is None:
            self._execute(self._received.popleft())
            self._server.wake()

    def retry(self) -> bool:
        """Execute the command of a blocked client again. Return whether its wait has ended."""
        assert self._blocked is not None
        try:
            reply = self._server.call(self._blocked[0].upper(), self._blocked[1:])
        except RedisError as error:
            reply = error
        if isinstance(reply, Wait):
            return False
        self._finish(reply)
        return True

    def _execute(self, words: list[bytes]) -> None:
        try:
            reply = self._reply(words[0].upper(), words[1:])
        except RedisError as error:
            self._is_aborted |= self._queued is not None
            reply = error
        if isinstance(reply, Wait):
            self._block(words, reply)
        elif reply is not _NOTHING:
            self.send(reply)

    def _reply(self, name: bytes, arguments: list[bytes]) -> Reply:
        if self._queued is not None and name not in (b"EXEC", b"MULTI"):
            self._server.check(name, arguments)
            self._queued.append([name, *arguments])
            return _QUEUED
        session = SESSION_COMMANDS.get(name)
        if session is None:
            return self._server.call(name, arguments)
        self._server.check(name, arguments)
        return session.run(self, arguments)

    def _block(self, words: list[bytes], wait: Wait) -> None:
        self._blocked = words
        self._server.waiting[self] = wait
        if wait.milliseconds:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait.milliseconds / 1000, self._time_out)

    def _time_out(self) -> None:
        self._finish(Absent.LIST)
        self.execute_received()
        self._server.finish_turn()

    def _finish(self, reply: Reply) -> None:
        """End the wait of a blocked client."""
        self._unblock()
        self.send(reply)

    def _unblock(self) -> None:
        self._blocked = None
        self._server.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def _client(self, arguments: Arguments) -> Reply:
        if arguments[0].upper() in (b"SETINFO", b"SETNAME"):
            return OK
        raise RedisError(f"ERR unknown subcommand '{arguments[0].decode()}'. Try CLIENT HELP.")

    def _hello(self, arguments: Arguments) -> Reply:
        if len(arguments) > 1:
            raise NotImplementedError("the simulated Redis does not know the options of HELLO")
        if arguments:
            if arguments[0] not in (b"2", b"3"):
                raise RedisError("NOPROTO unsupported protocol version")
            self._version = int(arguments[0])
        return {
            b"server": b"redis",
            b"version": b"7.0.15",
            b"proto": self._version,
            b"id": list(self._server.clients).index(self) + 1,
            b"mode": b"standalone",
            b"role": b"master",
            b"modules": [],
        }

    def _info(self, _: Arguments) -> Reply:
        lines = {
            "redis_version": "7.0.15",
            "blocked_clients": len(self._server.waiting),
            "used_memory": 0,
            "maxmemory": 0,
            "expired_keys": self._server.data.expired,
            "evicted_keys": 0,
            "keyspace_hits": 0,
            "keyspace_misses": 0,
        }
        return "".join(f"{name}:{value}\r\n" for name, value in lines.items()).encode()

    def _ping(self, arguments: Arguments) -> Reply:
        if self._channels and self._version == 2:
            return [b"pong", b"".join(arguments)]
        return arguments[0] if arguments else Status(b"PONG")

    def _publish(self, arguments: Arguments) -> Reply:
        return self._server.publish(*arguments)

    def _subscribe(self, channels: Arguments) -> Reply:
        for channel in channels:
            self._channels[channel] = None
            self._server.subscribers.setdefault(channel, {})[self] = None
            self.send(Push([b"subscribe", channel, len(self._channels)]))
        return _NOTHING

    def _unsubscribe(self, channels: Arguments) -> Reply:
        every: Sequence[bytes | None] = channels or list(self._channels) or [None]
        for channel in every:
            if channel is not None and channel in self._channels:
                del self._channels[channel]
                del self._server.subscribers[channel][self]
            self.send(Push([b"unsubscribe", channel, len(self._channels)]))
        return _NOTHING

    def _multi(self, _: Arguments) -> Reply:
        if self._queued is not None:
            raise RedisError("ERR Command 'multi' not allowed inside a transaction")
        self._queued, self._is_aborted = [], False
        return OK

    def _exec(self, _: Arguments) -> Reply:
        if self._queued is None:
            raise RedisError("ERR EXEC without MULTI")
        queued, self._queued = self._queued, None
        if self._is_aborted:
            raise RedisError("EXECABORT Transaction discarded because of previous errors.")
        return [self._run_queued(name, arguments) for name, *arguments in queued]

    def _run_queued(self, name: bytes, arguments: Sequence[bytes]) -> Reply:
        try:
            reply = self._reply(name, list(arguments))
        except RedisError as error:
            return error
        return Absent.LIST if isinstance(reply, Wait) else reply

    def _script(self, arguments: Arguments) -> Reply:
        action, script = arguments
        if action.upper() != b"LOAD":
            raise NotImplementedError(f"the simulated Redis does not know SCRIPT {action!r}")
        return self._server.scripts.load(script)

    def _eval(self, arguments: Arguments) -> Reply:
        digest = self._server.scripts.load(arguments[0])
        return self._server.run_script(digest, arguments[1:])

    def _evalsha(self, arguments: Arguments) -> Reply:
        return self._server.run_script(arguments[0], arguments[1:])


class _SessionCommand(NamedTuple):
    """A command on the state of a connection or of the server process."""

    run: Callable[[RedisProtocol, Arguments], Reply]
    least: int
    most: int | None
    effect: Effect = Effect.NONE


SESSION_COMMANDS: Final[dict[bytes, _SessionCommand]] = {
    b"CLIENT": _SessionCommand(RedisProtocol._client, 1, None),  # noqa: SLF001
    b"EVAL": _SessionCommand(RedisProtocol._eval, 2, None),  # noqa: SLF001
    b"EVALSHA": _SessionCommand(RedisProtocol._evalsha, 2, None),  # noqa: SLF001
    b"EXEC": _SessionCommand(RedisProtocol._exec, 0, 0),  # noqa: SLF001
    b"HELLO": _SessionCommand(RedisProtocol._hello, 0, None),  # noqa: SLF001
    b"INFO": _SessionCommand(RedisProtocol._info, 0, None),  # noqa: SLF001
    b"MULTI": _SessionCommand(RedisProtocol._multi, 0, 0),  # noqa: SLF001
    b"PING": _SessionCommand(RedisProtocol._ping, 0, 1),  # noqa: SLF001
    b"PUBLISH": _SessionCommand(RedisProtocol._publish, 2, 2),  # noqa: SLF001
    b"SCRIPT": _SessionCommand(RedisProtocol._script, 2, 2),  # noqa: SLF001
    b"SUBSCRIBE": _SessionCommand(RedisProtocol._subscribe, 1, None),  # noqa: SLF001
    b"UNSUBSCRIBE": _SessionCommand(RedisProtocol._unsubscribe, 0, None),  # noqa: SLF001
}
