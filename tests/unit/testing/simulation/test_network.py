"""Tests the simulated network with asyncio's own streams and transports, and with sockets."""

import asyncio
import errno
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from sluicegate.gateway.sockets.tcp_keepalive import TcpKeepalive
from sluicegate.wire.http.timeouts import confirmed_by_peer, has_unread
from sluicegate.wire.listening import refuse_new_connections
from testing.certificates import Authority
from testing.simulation import Process, Simulation

_SERVER, _CLIENT = "10.0.1.1", "10.0.2.1"
_PORT = 80
Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

# The programs of these tests leave streams open.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <StreamWriter:ResourceWarning")


class _Pair:
    """A server that runs `handle` for each connection, and a machine of clients."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.network = simulation.network
        self.server = simulation.machine("server", address=_SERVER)
        self.client = simulation.machine("client", address=_CLIENT)
        self.process: Process

    def start(self, handle: Handle) -> None:
        async def serve() -> None:
            async with await asyncio.start_server(handle, _SERVER, _PORT) as server:
                await server.serve_forever()

        self.process = self.server.start("server", serve)

    def run(self, handle: Handle, client: Callable[[], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            self.start(handle)
            await asyncio.sleep(1)
            return await self.client.start("client", client).wait()

        return self.simulation.run(main, until=5_000)


@pytest.fixture
def pair(simulation: Simulation) -> _Pair:
    """Return two machines."""
    return _Pair(simulation)


async def _connect(host: str = _SERVER) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(host, _PORT)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def test_bytes_arrive_in_their_order(pair: _Pair) -> None:
    """Megabytes go there and back through the windows."""
    sent = bytes(range(256)) * 12_000

    async def client() -> bytes:
        reader, writer = await _connect()
        writer.write(sent)
        writer.write_eof()
        return await reader.read()

    assert pair.run(_echo, client) == sent


def test_a_name_of_a_machine_is_its_address(pair: _Pair) -> None:
    """Names are looked up in the simulated network."""

    async def client() -> tuple[Any, list[Any]]:
        _, writer = await _connect("server")
        info = [writer.get_extra_info(name) for name in ("peername", "sockname")]
        with pytest.raises(socket.gaierror):
            await _connect("nobody")
        return writer.get_extra_info("socket").family, info

    family, (peer, own) = pair.run(_hold, client)

    assert (family, peer, own[0]) == (socket.AF_INET, (_SERVER, _PORT), _CLIENT)


class _Slow(asyncio.Protocol):
    """Reads when it is told to."""

    def __init__(self) -> None:
        self.received = 0

    @override
    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        asyncio.get_running_loop().call_soon(transport.pause_reading)

    @override
    def data_received(self, data: bytes) -> None:
        self.received += len(data)


class _Writer(asyncio.Protocol):
    """Notes when it is told to stop writing, and to go on."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @override
    def pause_writing(self) -> None:
        self.seen.append("pause")

    @override
    def resume_writing(self) -> None:
        self.seen.append("resume")


def test_a_reader_that_pauses_makes_the_writer_pause(pair: _Pair) -> None:
    """Windows and the marks of the write buffer bound what is under way."""
    sides: list[_Slow] = []

    async def serve() -> None:
        def make() -> _Slow:
            sides.append(_Slow())
            return sides[-1]

        server = await asyncio.get_running_loop().create_server(make, _SERVER, _PORT)
        await asyncio.sleep(10)
        sides[0].transport.resume_reading()
        await server.serve_forever()

    async def client() -> tuple[list[str], list[str], int]:
        transport, writer = await asyncio.get_running_loop().create_connection(
            _Writer, _SERVER, _PORT
        )
        transport.write(bytes(1_000_000))
        await asyncio.sleep(5)
        before, held = list(writer.seen), transport.get_write_buffer_size()
        await asyncio.sleep(10)
        return before, writer.seen, held

    async def main() -> Any:
        pair.server.start("server", serve)
        await asyncio.sleep(1)
        return await pair.client.start("client", client).wait()

    before, after, held = pair.simulation.run(main, until=100)

    assert before == ["pause"]
    assert after == ["pause", "resume"]
    assert held > 400_000
    assert sides[0].received == 1_000_000


class _Buffered(asyncio.BufferedProtocol):
    """Receives into a buffer of its own."""

    def __init__(self) -> None:
        self.buffer = bytearray(4)
        self.received = b""

    @override
    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]


def test_a_buffered_protocol_receives_into_its_buffer(pair: _Pair) -> None:
    """`get_buffer` and `buffer_updated` are called as by asyncio."""

    async def client() -> bytes:
        transport, protocol = await asyncio.get_running_loop().create_connection(
            _Buffered, _SERVER, _PORT
        )
        transport.write(b"0123456789")
        await asyncio.sleep(1)
        return protocol.received

    assert pair.run(_echo, client) == b"0123456789"


def test_a_half_closed_connection_still_receives(pair: _Pair) -> None:
    """`write_eof` ends one direction alone."""

    async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d bytes" % len(await reader.read()))
        writer.close()

    async def client() -> bytes:
        reader, writer = await _connect()
        writer.write(b"12345")
        writer.write_eof()
        return await reader.read()

    assert pair.run(answer_at_the_end, client) == b"5 bytes"


def test_a_port_without_a_listener_refuses(pair: _Pair) -> None:
    """Nobody listens at the address of a machine."""

    async def client() -> None:
        await asyncio.open_connection(_SERVER, 81)

    with pytest.raises(ConnectionRefusedError):
        pair.run(_echo, client)


def test_a_connection_over_a_cut_gets_no_answer(pair: _Pair) -> None:
    """It is made when the link is healed: the first segment is sent again."""

    async def client() -> tuple[bool, float]:
        pair.network.cut(_CLIENT, _SERVER)
        is_late = False
        try:
            async with asyncio.timeout(20):
                await _connect()
        except TimeoutError:
            is_late = True
        began = time.monotonic()
        connecting = asyncio.create_task(_connect())
        await asyncio.sleep(5)
        pair.network.heal(_CLIENT, _SERVER)
        await connecting
        return is_late, time.monotonic() - began

    is_late, took = pair.run(_echo, client)

    assert is_late
    assert took == pytest.approx(7, abs=0.1)  # 1 s + 2 s + 4 s


@pytest.mark.parametrize("link", [(_CLIENT, _SERVER), (_SERVER, _CLIENT)])
def test_bytes_lost_in_a_cut_are_sent_again(pair: _Pair, link: tuple[str, str]) -> None:
    """Nothing is lost or doubled, whichever direction was cut."""

    async def client() -> tuple[bool, bytes]:
        reader, writer = await _connect()
        pair.network.cut(*link)
        writer.write(b"one")
        await asyncio.sleep(5)
        writer.write(b"two")
        reading = asyncio.create_task(reader.readexactly(6))
        await asyncio.sleep(5)
        was_silent = not reading.done()
        pair.network.heal(*link)
        return was_silent, await reading

    assert pair.run(_echo, client) == (True, b"onetwo")


def test_unacknowledged_bytes_end_a_connection_in_time(pair: _Pair) -> None:
    """`TCP_USER_TIMEOUT` bounds how long data may stay unacknowledged."""

    async def client() -> float:
        reader, writer = await _connect()
        TcpKeepalive(user_timeout=10.0).apply(writer.transport)
        pair.network.cut(_CLIENT, _SERVER)
        writer.write(b"lost")
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await reader.read()
        return time.monotonic() - began

    assert 10 <= pair.run(_echo, client) < 15


def test_keepalive_ends_a_silent_connection(pair: _Pair) -> None:
    """Without it, a half-open connection lasts for ever."""

    async def client() -> tuple[float, bool]:
        reader, writer = await _connect()
        other, _ = await _connect()
        TcpKeepalive(idle=5, user_timeout=10.0).apply(writer.transport)
        pair.network.cut(_SERVER, _CLIENT)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await reader.read()
        took = time.monotonic() - began
        waiting = asyncio.create_task(other.read())
        await asyncio.sleep(1_000)
        return took, waiting.done()

    took, has_ended = pair.run(_hold, client)

    assert 10 <= took < 15
    assert not has_ended


def test_a_reset_ends_both_sides(pair: _Pair) -> None:
    """Connections between two addresses can be reset."""
    errors: list[Exception] = []

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionResetError as error:
            errors.append(error)

    async def client() -> None:
        reader, _ = await _connect()
        await asyncio.sleep(1)
        pair.network.reset(_CLIENT, _SERVER)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await asyncio.sleep(1)

    pair.run(read, client)

    assert len(errors) == 1


def test_a_slow_link_delays_segments(pair: _Pair) -> None:
    """Both a slow link and the distance of two machines take time."""

    async def client() -> float:
        reader, writer = await _connect()
        pair.network.distance(_CLIENT, _SERVER, 0.5, 0.5)
        pair.network.slow(_CLIENT, _SERVER, 3.0)
        began = time.monotonic()
        writer.write(b"ping")
        await reader.read(4)
        return time.monotonic() - began

    assert 1.0 < pair.run(_echo, client) < 4.1


def test_data_for_a_closed_connection_is_reset(pair: _Pair) -> None:
    """The peer of a closed connection first sees its end, then a reset."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def client() -> bytes:
        reader, writer = await _connect()
        end = await reader.read()
        writer.write(b"too late")
        await asyncio.sleep(1)
        writer.write(b"more")
        with pytest.raises(ConnectionResetError):
            await writer.drain()
        return end

    assert pair.run(close, client) == b""


def test_closing_with_unread_data_resets_the_peer(pair: _Pair) -> None:
    """So does a connection that discards its data at the end (`SO_LINGER` 0)."""

    async def discard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await reader.read(1)
        writer.transport.abort()

    async def client() -> None:
        reader, writer = await _connect()
        writer.write(b"data")
        with pytest.raises(ConnectionResetError):
            await reader.read()

    pair.run(discard, client)


def test_the_peer_of_a_killed_process_sees_the_end(pair: _Pair) -> None:
    """The kernel closes the connections; nobody listens any more."""

    async def client() -> bytes:
        reader, _ = await _connect()
        await asyncio.sleep(1)
        pair.process.kill()
        end = await reader.read()
        with pytest.raises(ConnectionRefusedError):
            await _connect()
        return end

    assert pair.run(_hold, client) == b""


def test_an_address_in_use_cannot_be_bound(pair: _Pair) -> None:
    """Two sockets have one address only if both share the port."""

    async def client() -> list[int | None]:
        machine = pair.client
        found: list[int | None] = []
        first = machine.listener(_CLIENT, 90)
        first.listen()
        for host, port in [(_CLIENT, 90), ("", 90), (_SERVER, 91)]:
            try:
                machine.listener(host, port)
            except OSError as error:
                found.append(error.errno)
        shared = []
        for _ in range(2):
            each = socket.socket()
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind((_CLIENT, 92))
            each.listen()
            shared.append(each)
        return found

    found = pair.run(_echo, client)

    assert found == [errno.EADDRINUSE, errno.EADDRINUSE, errno.EADDRNOTAVAIL]


def test_loopback_and_unix_sockets_belong_to_a_machine(pair: _Pair) -> None:
    """Their listeners are found on the own machine alone."""

    async def local(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"here")
        writer.close()

    async def client() -> list[bytes]:
        await asyncio.start_server(local, "127.0.0.1", 90)
        await asyncio.start_server(local, sock=_unix_listener("/run/local"))
        found = []
        for reader, _ in [
            await asyncio.open_connection("localhost", 90),
            await asyncio.open_unix_connection("/run/local"),
        ]:
            found.append(await reader.read())
        return found

    async def elsewhere() -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("localhost", 90)

    async def main() -> Any:
        found = await pair.client.start("client", client).wait()
        await pair.server.start("elsewhere", elsewhere).wait()
        return found

    assert pair.simulation.run(main) == [b"here", b"here"]


def _unix_listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    return listener


def test_a_filtered_listener_drops_new_connections(pair: _Pair) -> None:
    """A draining listener answers nobody new, as with the product's filter."""

    async def client() -> None:
        listener = socket.socket()
        listener.bind((_CLIENT, 90))
        listener.listen()
        refuse_new_connections(listener)
        async with asyncio.timeout(3):
            await asyncio.open_connection(_CLIENT, 90)

    with pytest.raises(TimeoutError):
        pair.run(_echo, client)


def test_what_the_kernel_knows_of_a_connection_is_simulated(pair: _Pair) -> None:
    """Unread bytes, and bytes that the peer has confirmed."""

    async def client() -> list[object]:
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, _SERVER, _PORT
        )
        found: list[object] = [has_unread(transport)]
        transport.pause_reading()
        transport.write(b"12345")
        await asyncio.sleep(1)
        return [*found, has_unread(transport), confirmed_by_peer(transport)]

    assert pair.run(_echo, client) == [False, True, 5]


def test_tls_runs_over_simulated_connections(pair: _Pair, tmp_path: Path) -> None:
    """It is asyncio's own, above the same transports."""
    authority = Authority(tmp_path)
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(authority.issue("server", "server"))
    connecting = ssl.create_default_context(cafile=authority.ca)

    async def serve() -> None:
        server = await asyncio.start_server(_echo, _SERVER, _PORT, ssl=accepting)
        await server.serve_forever()

    async def client() -> bytes:
        reader, writer = await asyncio.open_connection("server", _PORT, ssl=connecting)
        writer.write(b"secret")
        return await reader.readexactly(6)

    async def main() -> Any:
        pair.server.start("server", serve)
        await asyncio.sleep(1)
        return await pair.client.start("client", client).wait()

    assert pair.simulation.run(main, until=100) == b"secret"


def test_a_thread_can_use_a_blocking_socket(pair: _Pair) -> None:
    """It waits in virtual time, as long as its timeout."""

    def ask() -> list[object]:
        with socket.socket() as connection:
            connection.connect((_SERVER, _PORT))
            connection.sendall(b"hello")
            received = connection.recv(5)
            connection.settimeout(3)
            with pytest.raises(TimeoutError):
                connection.recv(5)
            return [received, isinstance(connection, socket.socket)]

    async def client() -> list[object]:
        return await asyncio.to_thread(ask)

    assert pair.run(_echo, client) == [b"hello", True]


def test_a_crashed_machine_does_not_say_goodbye(pair: _Pair) -> None:
    """Its peers learn it from a reset, when they send to it after it has booted."""

    async def client() -> tuple[bool, float]:
        reader, writer = await _connect()
        await asyncio.sleep(1)
        pair.server.crash()
        reading = asyncio.create_task(reader.read())
        await asyncio.sleep(30)
        is_silent = not reading.done()
        began = time.monotonic()
        pair.server.boot()
        writer.write(b"anybody there?")
        with pytest.raises(ConnectionResetError):
            await reading
        return is_silent, time.monotonic() - began

    is_silent, took = pair.run(_echo, client)

    assert is_silent
    assert took < 0.1


def test_a_paused_process_receives_when_it_goes_on(pair: _Pair) -> None:
    """The kernel acknowledges what comes meanwhile."""

    async def client() -> tuple[int, float]:
        reader, writer = await _connect()
        await asyncio.sleep(1)
        pair.process.pause()
        writer.write(b"hello")
        await asyncio.sleep(100)
        confirmed = writer.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, 128
        )
        began = time.monotonic()
        pair.process.resume()
        await reader.readexactly(5)
        return struct.unpack_from("Q", confirmed, 120)[0], time.monotonic() - began

    confirmed, took = pair.run(_echo, client)

    assert confirmed == 5
    assert took < 0.01


def test_a_machine_without_power_does_not_answer(pair: _Pair) -> None:
    """It refuses connections once it has booted, as long as nobody listens."""

    async def client() -> float:
        pair.server.crash()
        connecting = asyncio.create_task(_connect())
        await asyncio.sleep(2)
        pair.server.boot()
        began = time.monotonic()
        with pytest.raises(ConnectionRefusedError):
            await connecting
        return time.monotonic() - began

    assert pair.run(_echo, client) == pytest.approx(1, abs=0.01)  # the second repetition, at 3 s
