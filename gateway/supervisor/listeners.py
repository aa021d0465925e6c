"""Opens the sockets that children listen on, once, and keeps them open over restarts."""

import contextlib
import errno
import random
import socket
import sys
from collections.abc import Iterator, Sequence

from gateway.supervisor.errors import CannotStart, ExitCode

# Below the range of ephemeral ports, so that no outgoing connection takes a backend's port while
# the backend restarts.
_FREE_PORTS = range(20_000, 32_000)
_ATTEMPTS = 200


def check_free(host: str, port: int, *, option: str) -> None:
    """Make sure that no process listens on `port`.

    Raises:
        CannotStart: one does; the message names the `option` that chooses another port.
    """
    with contextlib.closing(_socket(host)) as candidate:
        try:
            candidate.bind((host, port))
            candidate.listen()  # fails where another is bound and does not listen yet
        except OSError as error:
            raise _refused(host, port, option, error) from error


@contextlib.contextmanager
def open_listeners(
    host: str, port: int, count: int, *, option: str
) -> Iterator[Sequence[socket.socket]]:
    """Open `count` sockets bound to one free port; the children that inherit them call `listen`.

    They stay open while this is entered, so that connections in the backlog outlive the process
    that listened.

    Raises:
        CannotStart: the port is in use.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(claim(port))
        check_free(host, port, option=option)
        opened = [stack.enter_context(_socket(host)) for _ in range(count)]
        try:
            for listener in opened:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                listener.bind((host, port))
                listener.setblocking(False)  # for all who inherit it
        except OSError as error:
            raise _refused(host, port, option, error) from error
        yield opened


@contextlib.contextmanager
def reserve_port(host: str, port: int, *, option: str) -> Iterator[None]:
    """Keep `port`, on which children listen by themselves, while this is entered; 0 is none.

    Raises:
        CannotStart: the port is in use.
    """
    # Never listened on: connections go to the children, which share the port.
    with contextlib.ExitStack() as stack:
        if port:
            stack.enter_context(open_listeners(host, port, 1, option=option))
        yield


@contextlib.contextmanager
def claim(port: int) -> Iterator[None]:
    """Claim `port` among supervisors.

    `check_free` does not see sockets with `SO_REUSEPORT` that do not listen yet; this keeps two
    supervisors that start at the same time apart.

    Raises:
        CannotStart: another supervisor has it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as guard:
        if sys.platform == "linux":  # only there a name needs no file
            try:
                guard.bind(f"\0sluicegate-port-{port}")
            except OSError as error:
                raise CannotStart(
                    f"port {port} belongs to another sluicegate; stop it or choose another port",
                    exit_code=ExitCode.BUSY,
                ) from error
        yield


def free_port(host: str, *, taken: set[int], choose: random.Random) -> int:
    """Return a port that no process listens on and that is not in `taken`.

    Raises:
        CannotStart: no free one was found.
    """
    for _ in range(_ATTEMPTS):
        port = choose.choice(_FREE_PORTS)
        if port in taken:
            continue
        with contextlib.closing(_socket(host)) as candidate, contextlib.suppress(OSError):
            candidate.bind((host, port))
            return port
    raise CannotStart(f"no free port was found on {host}")


def _socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    # Connections of a former run in TIME_WAIT do not make the port busy.
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return opened


def _refused(host: str, port: int, option: str, error: OSError) -> CannotStart:
    if error.errno == errno.EADDRINUSE:
        detail = "is in use by another process; stop it or choose another port"
    else:
        detail = f"cannot be used ({error.strerror}); choose another"
    return CannotStart(f"port {port} on {host} {detail} with `{option}`", exit_code=ExitCode.BUSY)
