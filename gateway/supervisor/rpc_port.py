"""Chooses and reserves the port on which workers serve gRPC."""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Final

from gateway.supervisor.errors import CannotStart, ExitCode
from gateway.supervisor.listeners import reserve_port
from wire.installing import install_command

PREFERRED: Final = 8001
"""Triton's port for gRPC. Triton's clients use it by default."""
OPTION: Final = "--grpc-port"
_LIBRARIES: Final = ("grpc", "google.protobuf")


@contextlib.contextmanager
def open_rpc_port(host: str, asked: int | None, *, say: Callable[[str], None]) -> Iterator[int]:
    """Reserve a port for gRPC while the context lasts, and yield the port.

    Yield 0 if gRPC is not served. `asked` is the requested port. If it is 0, gRPC is not served. If
    it is `None`, the port is `PREFERRED` (8001), but gRPC is not served if it is not installed or
    if this port is in use.

    Raises:
        CannotStart: the requested port is in use, or gRPC is not installed.
    """
    check_rpc(asked or 0)
    port = PREFERRED if asked is None and _is_installed() else asked or 0
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(reserve_port(host, port, option=OPTION))
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
            f" `{OPTION}` and `SLUICEGATE_GRPC_PORT`",
            exit_code=ExitCode.CONFIGURATION,
        )


def _is_installed() -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in _LIBRARIES)
    except ModuleNotFoundError:  # there is no package `google`
        return False
