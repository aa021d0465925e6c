"""Opens listening sockets. Drains their accept queues, so that closing one loses no connection."""

import asyncio
import contextlib
import ctypes
import select
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

# From <asm-generic/socket.h>; the module `socket` has no name for it.
_SO_ATTACH_FILTER = 26
# Classic BPF over the TCP header: drops a segment with SYN and without ACK, passes all others.
_DROP_SYN = struct.pack(
    "HBBI" * 5,
    *(0x30, 0, 0, 13),  # load the byte of the flags
    *(0x54, 0, 0, 0x12),  # keep SYN and ACK of it
    *(0x15, 0, 1, 0x02),  # SYN alone?
    *(0x06, 0, 0, 0),  # drop
    *(0x06, 0, 0, 0xFFFFFFFF),  # pass
)
# Seconds for a SYN that passed the filter and is in no table of the kernel yet.
_HANDSHAKE_GRACE = 0.1
_POLL_INTERVAL = 0.01
_EMPTY_TIMEOUT = 2.0
_PROC_TCP_TABLES = ("/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6")
_SYN_RECV = b"03"

# Seconds that a connection may stay in another worker's accept queue before it is accepted here.
# Where that worker was killed, a connection waits twice this at most.
TAKEOVER_INTERVAL = 0.02
_ACCEPTED_AT_ONCE = 64

Take = Callable[[socket.socket, str], object]
"""Serves an accepted connection, given the address from which it comes."""


def open_socket(
    host: str, port: int, *, backlog: int | None = None, shares_port: bool = False
) -> socket.socket:
    """Return a TCP socket that is bound to an IPv4 or IPv6 address.

    It listens if it has a `backlog`. If it `shares_port`, sockets of other processes that do so,
    too, can have the same address.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of an earlier process that are in TIME_WAIT must not make the port look used.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind((host, port))
        if backlog is not None:
            opened.listen(backlog)
    except OSError:
        opened.close()
        raise
    return opened


def refuse_new_connections(listener: socket.socket) -> None:
    """Drop SYN packets to `listener`, in all processes that share it; does not block.

    Handshakes under way complete, and are still accepted. A client that connects now repeats its
    SYN a second later, and is then refused, or accepted by a successor. Without the filter, a
    connection made between the last `accept` and `close` would be reset, as on systems without
    such filters.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(_DROP_SYN, len(_DROP_SYN))
    pointer = struct.pack("HP", len(_DROP_SYN) // 8, ctypes.addressof(program))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


async def wait_until_empty(
    listeners: Sequence[socket.socket], *, within: float = _EMPTY_TIMEOUT
) -> None:
    """Wait until the accept queues of `listeners`, which refuse new connections, are empty.

    Handshakes under way are waited for too: a distant client counts as connected half a round trip
    before the kernel does. Others have to accept the connections. Ends after `within` seconds in
    any case.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    poller = _poller(listeners)
    ports = {listener.getsockname()[1] for listener in listeners}
    while (elapsed := loop.time() - started) < within:
        # In this order: a completed handshake moves into the queue.
        if elapsed >= _HANDSHAKE_GRACE and not _has_handshake(ports) and not _ready(poller):
            return
        await asyncio.sleep(_POLL_INTERVAL)


async def accept_for_siblings(
    listeners: Sequence[socket.socket], take: Take, *, until: asyncio.Event
) -> None:
    """Have `take` serve connections that stay in the queues of `listeners`, other workers' sockets.

    They stay there when their worker was killed, hangs or stops. `listeners` are non-blocking. Ends
    when `until` is set. Does nothing on systems other than Linux.
    """
    if not listeners or sys.platform != "linux":
        return
    poller = _poller(listeners)
    with contextlib.closing(_ArrivalWatcher(listeners)) as arrivals:
        while True:
            pending = await arrivals.next()
            while pending:
                await asyncio.sleep(TAKEOVER_INTERVAL)
                if until.is_set():
                    return
                ready = _ready(poller)
                for listener in listeners:
                    if listener.fileno() in pending & ready:
                        _accept(listener, take)
                pending = ready | arrivals.arrived_sockets()


class _ArrivalWatcher:
    """Reports which sockets got new connections, by edge-triggered epoll and without polling."""

    def __init__(self, listeners: Sequence[socket.socket]) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()  # noqa: TID251 - simulated processes share no sockets
        for listener in listeners:
            # Edge-triggered: once for each arrival, not for as long as the queue holds one.
            self._epoll.register(listener, select.EPOLLIN | select.EPOLLET)

    def close(self) -> None:
        """Report no more arrivals."""
        self._loop.remove_reader(self._epoll.fileno())
        # Other processes share the sockets: only closing epoll ends the kernel's notifications.
        self._epoll.close()

    async def next(self) -> set[int]:
        """Wait for the next arrival and return its sockets; later arrivals do not wake the task."""
        arrived = asyncio.Event()
        self._loop.add_reader(self._epoll.fileno(), arrived.set)
        await arrived.wait()
        self._loop.remove_reader(self._epoll.fileno())
        return self.arrived_sockets()

    def arrived_sockets(self) -> set[int]:
        """Return the sockets that got connections since the last call."""
        return {descriptor for descriptor, _ in self._epoll.poll(0)}


def _accept(listener: socket.socket, take: Take) -> None:
    for _ in range(_ACCEPTED_AT_ONCE):
        try:
            connection, address = listener.accept()
        except OSError:  # the queue is empty, or no file descriptors are free: the next poll shows
            return  # (or it is closed: this worker is stopping)
        take(connection, str(address[0]))


def _poller(listeners: Sequence[socket.socket]) -> select.poll:
    poller = select.poll()
    for listener in listeners:
        poller.register(listener, select.POLLIN)
    return poller


def _ready(poller: select.poll) -> set[int]:
    return {descriptor for descriptor, event in poller.poll(0) if event & select.POLLIN}


def _has_handshake(ports: set[int]) -> bool:
    """Return whether a handshake with one of `ports` is under way, by the kernel's tables."""
    for path in _PROC_TCP_TABLES:
        with contextlib.suppress(OSError), Path(path).open("rb") as table:
            for line in table:
                _, local, _, state, *_ = line.split(maxsplit=4)
                if state == _SYN_RECV and int(local.rpartition(b":")[2], 16) in ports:
                    return True
    return False
