"""Sockets of the simulated network, with the methods that asyncio and the product call."""

import errno
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Self

from typing_extensions import override

from testing.simulation.network import LOOPBACK, Address, Endpoint, Network
from testing.simulation.scheduler import Strand, here

if TYPE_CHECKING:
    from testing.simulation.loop import SimulatedSelector
    from testing.simulation.machines import Machine, Process

_SO_ATTACH_FILTER: Final = 26
_PEEK: Final = int(socket.MSG_PEEK)
_ACKNOWLEDGED_AT: Final = 120
"""The offset of the acknowledged bytes in `tcp_info`."""
_real: Final = {
    name: getattr(socket, name)
    for name in ("socket", "getaddrinfo", "gethostbyname", "gethostname", "socketpair")
}
_real_poll: Final = select.poll


class SimulatedSocket:
    """A TCP socket, or a Unix socket of its machine, of the process that creates it."""

    def __init__(
        self,
        family: int = -1,
        type: int = -1,  # noqa: A002
        proto: int = -1,
        fileno: int | None = None,
        *,
        process: "Process | None" = None,
        machine: "Machine | None" = None,
        endpoint: Endpoint | None = None,
    ) -> None:
        strand = here.strand
        if process is None and strand is not None and machine is None:
            process = strand.process
        self._process = process
        self._machine = machine or (process.machine if process is not None else None)
        if self._machine is None:
            raise RuntimeError("a simulated socket belongs to a machine")
        if fileno is not None:
            raise OSError(errno.ENOTSUP, "a simulated socket is not inherited: pass it itself")
        self._network: Network = self._machine.network
        self._descriptor = self._network.new_descriptor()
        self._set_up(family, type, proto)
        self._network.sockets[self._descriptor] = self
        if endpoint is not None:
            endpoint.socket = self
        self._endpoint = endpoint
        if process is not None:
            process.sockets[self] = None

    def _set_up(self, family: int, type: int, proto: int) -> None:  # noqa: A002
        self.family = socket.AddressFamily(socket.AF_INET if family == -1 else family)
        self.type = socket.SocketKind(socket.SOCK_STREAM if type == -1 else type)
        self.proto = 0 if proto == -1 else proto
        self.selector: SimulatedSelector | None = None
        self._bound: Address | str | None = None
        self._timeout: float | None = None
        self._options: dict[tuple[int, int], int] = {}
        self._waiting: list[Strand] = []
        self._queue: deque[Endpoint] = deque()
        self._backlog = -1
        self._is_shut = False
        self._lingers = True
        self.shares_port = False
        self.drops_syn = False
        """Whether new connections are neither accepted nor refused."""
        self.is_closed = False

    # Listening

    @property
    def is_full(self) -> bool:
        """Whether the accept queue is full."""
        return len(self._queue) > self._backlog

    def bind(self, address: Any) -> None:
        """Take an address of the machine.

        Raises:
            OSError: see `Network.bind`.
        """
        assert self._machine is not None
        if self.family == socket.AF_UNIX:
            self._bound = os.fspath(address)
        else:
            self._bound = self._network.bind(
                self._machine, address[0], address[1], shared=self.shares_port
            )

    def listen(self, backlog: int = 128) -> None:
        """Accept connections."""
        self._check_open()
        assert self._bound is not None
        assert self._machine is not None
        if self._backlog < 0:
            self._network.listeners.setdefault((self._machine, self._bound), []).append(self)
        self._backlog = max(backlog, 1)

    def arrived(self, endpoint: Endpoint) -> None:
        """Queue a new connection."""
        self._queue.append(endpoint)
        self.notify()

    def accept(self) -> tuple["SimulatedSocket", Any]:
        """Return the next connection, and the address from which it comes."""
        self._wait(lambda: bool(self._queue))
        endpoint = self._queue.popleft()
        strand = here.strand
        accepted = SimulatedSocket(
            self.family,
            self.type,
            self.proto,
            process=self._process or (strand.process if strand is not None else None),
            machine=self._machine,
            endpoint=endpoint,
        )
        accepted._bound = endpoint.local
        return accepted, endpoint.remote if self.family != socket.AF_UNIX else ""

    # Connecting

    def connect(self, address: Any) -> None:
        """Connect; a socket that does not block raises `BlockingIOError` and goes on."""
        self._check_open()
        if self._endpoint is not None:
            self._raise_error()
            return
        machine = self._machine
        assert machine is not None
        target: Machine | None = machine
        where: Address | str
        if self.family == socket.AF_UNIX:
            where = os.fspath(address)
            local, remote = (LOOPBACK, 0), (LOOPBACK, 0)
        else:
            host, port = str(address[0]), int(address[1])
            if host.startswith("127.") or host in machine.addresses:
                own = host
            else:
                own, target = machine.address, self._network.machines.get(host)
            where = remote = (host, port)
            local = (own, self._network.free_port(machine))
        self._endpoint = Endpoint(self._network, machine, local, remote)
        self._endpoint.socket = self
        self._bound = local
        self._apply_options()
        self._endpoint.connect(target, where)
        if self._timeout == 0.0:
            raise BlockingIOError(errno.EINPROGRESS, "Operation now in progress")
        self._wait(lambda: self._has_connected)
        self._raise_error()

    def connect_ex(self, address: Any) -> int:
        """Connect; return the number of the error instead of raising it."""
        try:
            self.connect(address)
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    @property
    def _has_connected(self) -> bool:
        endpoint = self._endpoint
        return endpoint is not None and (endpoint.is_open or endpoint.is_dead)

    # Data

    def send(self, data: Any, flags: int = 0) -> int:
        """Send a part of the data; return how many bytes."""
        endpoint = self._connected()
        view = memoryview(data).cast("B")
        self._wait(lambda: bool(endpoint.room) or endpoint.is_dead)
        if endpoint.is_dead or self._is_shut:
            self._raise_error()
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if here.strand is not None:
            here.strand.process.count_call()
        return endpoint.write(view)

    def sendmsg(self, buffers: Iterable[Any]) -> int:
        """Send a part of several buffers; return how many bytes."""
        return self.send(b"".join(buffers))

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of the data."""
        view = memoryview(data).cast("B")
        while view:
            view = view[self.send(view) :]

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return bytes that have arrived, `b""` at the end."""
        endpoint = self._connected()
        self._wait(self.is_readable)
        if endpoint.inbox:
            if self._process is not None:
                self._process.count_arrival(endpoint.remote_host)
            return endpoint.read(size, peek=bool(flags & _PEEK))
        self._raise_error()
        return b""

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        """Receive into a buffer; return how many bytes."""
        view = memoryview(buffer).cast("B")
        data = self.recv(size or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def shutdown(self, how: int) -> None:
        """End the own direction; reading goes on."""
        endpoint = self._connected()
        if endpoint.is_dead:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        if how in {socket.SHUT_WR, socket.SHUT_RDWR}:
            self._is_shut = True
            endpoint.end()

    # State

    def is_readable(self) -> bool:
        """Return whether `recv` or `accept` returns at once."""
        if self._backlog >= 0:
            return bool(self._queue)
        endpoint = self._endpoint
        return endpoint is not None and (
            bool(endpoint.inbox) or endpoint.has_ended or endpoint.is_dead
        )

    def is_writable(self) -> bool:
        """Return whether `send` takes bytes, or connecting has ended."""
        endpoint = self._endpoint
        return endpoint is not None and (
            endpoint.is_dead or (endpoint.is_open and endpoint.room > 0)
        )

    def notify(self) -> None:
        """Tell those who wait that the state has changed."""
        if self.selector is not None:
            self.selector.touch(self._descriptor)
        for strand in self._waiting:
            self._network.scheduler.wake(strand)

    def fileno(self) -> int:
        """Return the descriptor, which is none of the operating system; -1 once closed."""
        return -1 if self.is_closed else self._descriptor

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001
        """Let calls wait, or not."""
        self._timeout = None if flag else 0.0

    def settimeout(self, value: float | None) -> None:
        """Bound the wait of calls."""
        self._timeout = value

    def gettimeout(self) -> float | None:
        """Return the bound of the wait."""
        return self._timeout

    def getblocking(self) -> bool:
        """Return whether calls wait."""
        return self._timeout != 0.0

    def getsockname(self) -> Any:
        """Return the own address."""
        return self._bound if self._bound is not None else ("0.0.0.0", 0)  # noqa: S104

    def getpeername(self) -> Any:
        """Return the other end's address."""
        return self._connected().remote if self.family != socket.AF_UNIX else ""

    def setsockopt(self, level: int, option: int, value: Any = None, size: int = 0) -> None:
        """Set an option. Those of keep-alive, time-outs and lingering have an effect."""
        self._check_open()
        if (level, option) == (socket.SOL_SOCKET, _SO_ATTACH_FILTER):
            self.drops_syn = True
        elif (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER):
            self._lingers = struct.unpack("ii", value) != (1, 0)
        elif isinstance(value, int):
            self._options[level, option] = value
            self.shares_port = bool(self._options.get((socket.SOL_SOCKET, socket.SO_REUSEPORT)))
            self._apply_options()

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        """Return an option."""
        self._check_open()
        endpoint = self._endpoint
        if (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR):
            error, self._options[level, option] = endpoint.error if endpoint else 0, 0
            return error
        if (level, option) == (socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return int(self._backlog >= 0)
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO):
            information = bytearray(size)
            acknowledged = endpoint.acknowledged if endpoint is not None else 0
            struct.pack_into("Q", information, _ACKNOWLEDGED_AT, acknowledged)
            return bytes(information)
        return self._options.get((level, option), 0)

    def unconfirmed(self) -> int:
        """Return how many sent bytes the peer has not acknowledged."""
        return self._endpoint.unconfirmed if self._endpoint is not None else 0

    def close(self) -> None:
        """Close the socket; the peer of a closed connection gets an end or a reset."""
        if self.is_closed:
            return
        self.is_closed = True
        self._network.sockets.pop(self._descriptor, None)
        if self._process is not None:
            self._process.sockets.pop(self, None)
        if self._backlog >= 0 and self._machine is not None and self._bound is not None:
            self._network.listeners[self._machine, self._bound].remove(self)
            for endpoint in self._queue:
                endpoint.close(discard=True)
        if self._endpoint is not None:
            self._endpoint.close(discard=not self._lingers)

    def detach(self) -> int:
        """Not possible: nothing else can use the descriptor."""
        raise OSError(errno.ENOTSUP, "a simulated socket cannot be detached")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @override
    def __repr__(self) -> str:
        return f"<simulated socket {self._descriptor} {self._bound}>"

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        """Wait until the condition, as long as the time-out allows."""
        self._check_open()
        if is_ready():
            return
        if self._timeout == 0.0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        strand, scheduler = here.strand, self._network.scheduler
        if strand is None:
            raise RuntimeError("only a thread of a simulated process can wait")
        clock = strand.process.machine.clock
        until = None if self._timeout is None else clock.after(self._timeout)
        self._waiting.append(strand)
        try:
            while not is_ready():
                if until is not None and scheduler.now >= until:
                    raise TimeoutError("timed out")
                scheduler.wait(until)
        finally:
            self._waiting.remove(strand)

    def _connected(self) -> Endpoint:
        self._check_open()
        if self._endpoint is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return self._endpoint

    def _raise_error(self) -> None:
        if self._endpoint is not None and self._endpoint.error:
            raise OSError(self._endpoint.error, os.strerror(self._endpoint.error))

    def _check_open(self) -> None:
        if self.is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def _apply_options(self) -> None:
        endpoint, tcp = self._endpoint, socket.IPPROTO_TCP
        if endpoint is None:
            return
        options = self._options
        user = options.get((tcp, socket.TCP_USER_TIMEOUT), 0) / 1000
        endpoint.user_timeout = user or None
        if options.get((socket.SOL_SOCKET, socket.SO_KEEPALIVE)):
            idle = options.get((tcp, socket.TCP_KEEPIDLE), 7200)
            interval = options.get((tcp, socket.TCP_KEEPINTVL), 75)
            probes = options.get((tcp, socket.TCP_KEEPCNT), 9)
            endpoint.keepalive = (idle, user or idle + interval * probes)


class _SocketType(type):
    """Lets `isinstance(x, socket.socket)` be true for real and for simulated sockets."""

    @override
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (SimulatedSocket, _real["socket"]))

    @override
    def __call__(cls, *args: Any, **options: Any) -> Any:
        if here.strand is None:
            return _real["socket"](*args, **options)
        return SimulatedSocket(*args, **options)


class SocketFactory(metaclass=_SocketType):
    """Stands for `socket.socket`: a simulated one inside a simulation, else a real one."""


def getaddrinfo(
    host: Any,
    port: Any,
    family: int = 0,
    type: int = 0,  # noqa: A002
    proto: int = 0,
    flags: int = 0,
) -> Any:
    """Look up a name in the simulated network; numbers need no look-up."""
    strand = here.strand
    if strand is None:
        return _real["getaddrinfo"](host, port, family, type, proto, flags)
    return [
        (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port or 0)))
        for address in _addresses(strand.process, host)
    ]


def gethostbyname(host: str) -> str:
    """Look up the first address of a name."""
    strand = here.strand
    if strand is None:
        return str(_real["gethostbyname"](host))
    return _addresses(strand.process, host)[0]


def gethostname() -> str:
    """Return the present name of the simulated machine."""
    strand = here.strand
    return str(_real["gethostname"]()) if strand is None else strand.process.machine.hostname


def _addresses(process: "Process", host: Any) -> list[str]:
    name = host.decode() if isinstance(host, bytes) else host
    if name is None:
        return ["0.0.0.0"]  # noqa: S104
    if name == "localhost":
        return [LOOPBACK]
    if name.replace(".", "").isdigit():
        return [name]
    found = process.machine.network.resolve(name)
    if not found:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return found


class Poll:
    """Stands for `select.poll`, of simulated and of real descriptors."""

    def __init__(self) -> None:
        self._real = _real_poll()
        self._simulated: dict[int, int] = {}

    def register(self, descriptor: Any, events: int = select.POLLIN | select.POLLOUT) -> None:
        """See `select.poll`."""
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        if _simulated(number) is None:
            self._real.register(number, events)
        else:
            self._simulated[number] = events

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Return what is ready. It never waits if a simulated descriptor is registered."""
        ready = []
        for number, events in self._simulated.items():
            found = _simulated(number)
            if found is not None and events & select.POLLIN and found.is_readable():
                ready.append((number, select.POLLIN))
        return ready + self._real.poll(0 if self._simulated else timeout)


def _simulated(number: int) -> SimulatedSocket | None:
    strand = here.strand
    return None if strand is None else strand.process.machine.network.sockets.get(number)


def unconfirmed_bytes(descriptor: int) -> int | None:
    """Return the unacknowledged bytes of a simulated descriptor, `None` of a real one."""
    found = _simulated(descriptor)
    return None if found is None else found.unconfirmed()
