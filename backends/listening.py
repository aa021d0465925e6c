"""Empties the queue of a listening socket, so that closing the socket loses no connection."""

import asyncio
import contextlib
import ctypes
import select
import socket
import struct
import sys
from pathlib import Path

# From <asm-generic/socket.h>; the module `socket` has no name for it.
_SO_ATTACH_FILTER = 26
# Classic BPF over the TCP header: drops segments with SYN but without ACK, and passes all others.
_DROP_SYN = struct.pack(
    "HBBI" * 5,
    *(0x30, 0, 0, 13),  # load the flags
    *(0x54, 0, 0, 0x12),  # mask SYN and ACK
    *(0x15, 0, 1, 0x02),  # is only SYN set?
    *(0x06, 0, 0, 0),  # drop
    *(0x06, 0, 0, 0xFFFFFFFF),  # pass
)
# Seconds to wait for a SYN that has arrived before the filter was attached.
_ARRIVAL = 0.1
_POLL_INTERVAL = 0.01
_EMPTY_WITHIN = 2.0
_CONNECTIONS = ("/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6")
_HANDSHAKE = b"03"


async def empty_queue(listener: socket.socket, *, within: float = _EMPTY_WITHIN) -> None:
    """Drop new connections, and wait until the server has accepted all earlier ones.

    Without this function, a connection that completes between the last `accept` and `close` would
    be reset. The function also waits for handshakes in progress, for at most `within` seconds. A
    client whose SYN is dropped sends the SYN again after a second, and is then refused because the
    socket is closed. On systems without socket filters, a reset remains possible.
    """
    if sys.platform == "linux":
        program = ctypes.create_string_buffer(_DROP_SYN, len(_DROP_SYN))
        pointer = struct.pack("HP", len(_DROP_SYN) // 8, ctypes.addressof(program))
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    loop = asyncio.get_running_loop()
    started = loop.time()
    port = listener.getsockname()[1]
    while (passed := loop.time() - started) < within:
        # Check the queue last, because a completed handshake moves a connection into the queue.
        if passed >= _ARRIVAL and not _has_handshake(port) and not poller.poll(0):
            return
        await asyncio.sleep(_POLL_INTERVAL)


def _has_handshake(port: int) -> bool:
    """Return whether the kernel reports a handshake with `port` in progress."""
    for path in _CONNECTIONS:
        with contextlib.suppress(OSError), Path(path).open("rb") as table:
            for line in table:
                _, local, _, state, *_ = line.split(maxsplit=4)
                if state == _HANDSHAKE and int(local.rpartition(b":")[2], 16) == port:
                    return True
    return False
