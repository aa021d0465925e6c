"""Opens the sockets on which children listen, and keeps them open while children restart.

Workers open their own sockets for gRPC, on a port that is only reserved here.
"""

import contextlib
import errno
import importlib.util
import random
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from sluicegate.gateway.supervisor.errors import CannotStart, ExitCode
from sluicegate.wire.installing import install_command

# These ports are below the ephemeral ports. Otherwise, an outgoing connection could take a
# backend's port while the backend restarts.
_FREE_PORTS = range(20_000, 32_000)
_ATTEMPTS = 200
RPC_PORT: Final = 8001
"""Triton's port for gRPC. Triton's clients use it by default."""
RPC_OPTION: Final = "--grpc-port"
_LIBRARIES: Final = ("grpc", "google.protobuf")


def check_free(host: str, port: int, *, option: str) -> None:
    """Check that no process listens on `port`.

    Raises:
        CannotStart: a process listens on the port. The message names the `option` that sets the
            port.
    """
    with contextlib.closing(_socket(host)) as candidate:
        try:
            candidate.bind((host, port))
            candidate.listen()  # fails even if another socket is only bound to the port
        except OSError as error:
            raise _refused(host, port, option, error) from error


@contextlib.contextmanager
def open_listeners(
    host: str, port: int, count: int, *, option: str
) -> Iterator[Sequence[socket.socket]]:
    """Open `count` sockets on one free port. Children inherit the sockets, and call `listen`.

    The sockets stay open while the context lasts, so that connections in the backlog survive the
    end of a child.

    Raises:
        CannotStart: the port is in use.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(claim(port, option=option))
        check_free(host, port, option=option)
        opened = [stack.enter_context(_socket(host)) for _ in range(count)]
        try:
            for listener in opened:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                listener.bind((host, port))
                listener.setblocking(False)  # this also affects processes that inherit the socket
        except OSError as error:
            raise _refused(host, port, option, error) from error
        yield opened


@contextlib.contextmanager
def reserve_port(host: str, port: int, *, option: str) -> Iterator[None]:
    """While the context lasts, reserve `port` for children that open their own sockets on it.

    If `port` is 0, nothing is reserved.

    Raises:
        CannotStart: the port is in use.
    """
    # This socket never listens, so connections go to the children, which share the port.
    with contextlib.ExitStack() as stack:
        if port:
            stack.enter_context(open_listeners(host, port, 1, option=option))
        yield


@contextlib.contextmanager
def open_rpc_port(host: str, asked: int | None, *, say: Callable[[str], None]) -> Iterator[int]:
    """Reserve a port for gRPC while the context lasts, and yield the port.

    Yield 0 if gRPC is not served. `asked` is the requested port. If it is 0, gRPC is not served. If
    it is `None`, the port is `RPC_PORT` (8001), but gRPC is not served if it is not installed or
    if this port is in use.

    Raises:
        CannotStart: the requested port is in use, or gRPC is not installed.
    """
    check_rpc(asked or 0)
    port = RPC_PORT if asked is None and _is_installed() else asked or 0
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(reserve_port(host, port, option=RPC_OPTION))
        except CannotStart as error:
            if asked is not None:
                raise
            say(f"gRPC is off: {error}")
            port = 0
        yield port


def check_rpc(port: int) -> None:
    """Check that gRPC is installed, unless `port` is 0.

    If `port` is 0, workers do not serve gRPC.

    Raises:
        CannotStart: gRPC is not installed.
    """
    if port and not _is_installed():
        raise CannotStart(
            f"gRPC is not installed; run {install_command('gateway,grpc')}, or leave out"
            f" `{RPC_OPTION}` and `SLUICEGATE_GRPC_PORT`",
            exit_code=ExitCode.CONFIGURATION,
        )


def _is_installed() -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in _LIBRARIES)
    except ModuleNotFoundError:  # there is no package `google`
        return False


@contextlib.contextmanager
def claim(port: int, *, option: str) -> Iterator[None]:
    """While the context lasts, lock `port` against other supervisors.

    `check_free` does not notice sockets with `SO_REUSEPORT` that do not listen yet. Without this
    lock, two supervisors that start at the same time could both take the port.

    Raises:
        CannotStart: another supervisor has locked the port.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as guard:
        if sys.platform == "linux":  # only Linux has abstract socket names, which need no file
            try:
                guard.bind(f"\0sluicegate-port-{port}")
            except OSError as error:
                raise CannotStart(
                    f"port {port} is used by another sluicegate; stop it or choose another port "
                    f"with `{option}`",
                    exit_code=ExitCode.BUSY,
                ) from error
        yield


def free_port(host: str, *, taken: set[int], choose: random.Random) -> int:
    """Return a free port: no process listens on it, and it is not in `taken`.

    Raises:
        CannotStart: no port is free.
    """
    for _ in range(_ATTEMPTS):
        port = choose.choice(_FREE_PORTS)
        if port in taken:
            continue
        with contextlib.closing(_socket(host)) as candidate, contextlib.suppress(OSError):
            candidate.bind((host, port))
            return port
    raise CannotStart(
        f"no port from {_FREE_PORTS.start} on is free on {host}; stop other processes"
    )


def _socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    # Connections of an earlier process that are in TIME_WAIT must not make the port look used.
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return opened


def _refused(host: str, port: int, option: str, error: OSError) -> CannotStart:
    if error.errno == errno.EADDRINUSE:
        detail = "is in use by another process; stop it or choose another port"
    else:
        detail = f"cannot be used ({error.strerror}); choose another"
    return CannotStart(f"port {port} on {host} {detail} with `{option}`", exit_code=ExitCode.BUSY)
