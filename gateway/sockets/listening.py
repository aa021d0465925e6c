"""Listening sockets: whether connections wait in one, and how one is closed without losing any."""

import asyncio
import contextlib
import ctypes
import select
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

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
# For the SYN that had passed the filter and is seen nowhere yet.
_ARRIVAL = 0.1
_LOOK = 0.01
_EMPTY_WITHIN = 2.0
_CONNECTIONS = ("/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6")
_HANDSHAKE = b"03"

# A connection that still waits so long after it was seen at another worker's socket is accepted:
# twice this is what one waits at most for a worker that was killed.
TAKEOVER_INTERVAL = 0.02
_ACCEPTED_AT_ONCE = 64

MakeProtocol = Callable[[], asyncio.Protocol]


def refuse_new(listener: socket.socket) -> None:
    """Begin no more handshakes at `listener`, in all processes that have it; does not block.

    Those that have begun end, and are still accepted. A caller who comes now sends his SYN again a
    second later, and is refused by then, or taken by a successor. Without this a connection that
    is made between the last `accept` and `close` would be reset, as it may be where the system
    takes no such filter.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(_DROP_SYN, len(_DROP_SYN))
    pointer = struct.pack("HP", len(_DROP_SYN) // 8, ctypes.addressof(program))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


async def until_empty(listeners: Sequence[socket.socket], *, within: float = _EMPTY_WITHIN) -> None:
    """Wait until nobody waits to be accepted at any of `listeners`, which refuse new connections.

    Callers far away, who have not ended their handshake, are waited for too: they believe to be
    connected half a round trip before the kernel does. Who accepts is others' business; without
    them it ends after `within` seconds all the same.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    poller = _poller(listeners)
    ports = {listener.getsockname()[1] for listener in listeners}
    while (passed := loop.time() - started) < within:
        # In this order: what ends its handshake goes into the queue.
        if passed >= _ARRIVAL and not _has_handshake(ports) and not _ready(poller):
            return
        await asyncio.sleep(_LOOK)


async def take_over(
    listeners: Sequence[socket.socket], make_protocol: MakeProtocol, *, until: asyncio.Event
) -> None:
    """Accept, until `until`, what waits at `listeners` of others who do not accept it.

    That is the case when the other was killed, hangs or is stopping. `listeners` do not block.
    Elsewhere than on Linux it does nothing.
    """
    if not listeners or sys.platform != "linux":
        return
    poller = _poller(listeners)
    with _Arrivals(listeners) as arrivals:
        while True:
            waited = await arrivals.next()
            while waited:
                await asyncio.sleep(TAKEOVER_INTERVAL)
                if until.is_set():
                    return
                ready = _ready(poller)
                for listener in listeners:
                    if listener.fileno() in waited & ready:
                        await _accept(listener, make_protocol)
                waited = ready | arrivals.so_far()


class _Arrivals:
    """Tells at which sockets somebody has arrived, without looking while nobody does."""

    def __init__(self, listeners: Sequence[socket.socket]) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        for listener in listeners:
            # By edge: once for each arrival, and not for as long as somebody waits.
            self._epoll.register(listener, select.EPOLLIN | select.EPOLLET)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        # Others have the sockets, too: only with this does the kernel stop telling of them.
        self._epoll.close()

    async def next(self) -> set[int]:
        """Return the sockets of those who arrive next; what comes soon after wakes nobody."""
        arrived = asyncio.Event()
        self._loop.add_reader(self._epoll.fileno(), arrived.set)
        await arrived.wait()
        self._loop.remove_reader(self._epoll.fileno())
        return self.so_far()

    def so_far(self) -> set[int]:
        """Return the sockets of those who have arrived since the last time."""
        return {descriptor for descriptor, _ in self._epoll.poll(0)}


async def _accept(listener: socket.socket, make_protocol: MakeProtocol) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(_ACCEPTED_AT_ONCE):
        try:
            connection, _address = listener.accept()
        except OSError:  # nobody waits any more, or there are no more files: the next look tells
            return  # (or it is closed: this worker is leaving)
        connection.setblocking(False)
        try:
            await loop.connect_accepted_socket(make_protocol, connection)
        except OSError:  # the caller has left meanwhile
            connection.close()


def _poller(listeners: Sequence[socket.socket]) -> select.poll:
    poller = select.poll()
    for listener in listeners:
        poller.register(listener, select.POLLIN)
    return poller


def _ready(poller: select.poll) -> set[int]:
    return {descriptor for descriptor, event in poller.poll(0) if event & select.POLLIN}


def _has_handshake(ports: set[int]) -> bool:
    """Return whether a handshake with one of `ports` has begun, as far as the kernel tells."""
    for path in _CONNECTIONS:
        with contextlib.suppress(OSError), Path(path).open("rb") as table:
            for line in table:
                _, local, _, state, *_ = line.split(maxsplit=4)
                if state == _HANDSHAKE and int(local.rpartition(b":")[2], 16) in ports:
                    return True
    return False
