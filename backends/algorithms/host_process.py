"""Starts, hears, measures and kills the process of an algorithm host."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from typing_extensions import override

from backends.algorithms.confinement import NICENESS
from backends.algorithms.host_messages import FromHost, HostSpec, StartReply
from backends.algorithms.starvation import Clock, CoreDelays
from backends.algorithms.step_marks import StepMarks
from backends.protocol import MessageReader
from backends.settings import foreign_environment

# Seconds for a Python with its libraries; what it imports of the code's own has other ones.
_START_TIMEOUT = 60.0
_LOWEST = 19
_CHUNK_BYTES = 65_536
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Libraries that start a thread per core do so for the models, not beside them.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)

Fork = Callable[[Callable[[], "subprocess.Popen[bytes]"]], "subprocess.Popen[bytes]"]


class HostUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what a host uses: threads, bytes of memory, and seconds of all cores so far."""

    threads: int
    resident_bytes: int
    busy: float


class HostProcess:
    """Owns the process of a host whose code was imported, its socket and its marks."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", link: socket.socket, marks: StepMarks
    ) -> None:
        self._process = process
        self._folder = Path(f"/proc/{process.pid}")
        self.delays = CoreDelays(process.pid)
        self.link = link
        self.marks = marks

    def kill(self) -> None:
        """Kill the process and its group; it is waited for beside."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        threading.Thread(target=self._process.wait, daemon=True).start()

    def lower_priority(self) -> None:
        """Leave the processor to everything else, from now on."""
        with contextlib.suppress(OSError):  # a thread, or all of them, may be gone
            for thread in (self._folder / "task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _LOWEST)

    def delay(self) -> float:
        """Return how many seconds its threads have waited for a core so far."""
        return self.delays.read(has_threads=not self.marks.are_exact)

    def usage(self) -> HostUsage | None:
        """Return what it uses now; `None` when it has ended."""
        try:
            content = (self._folder / "stat").read_text()
        except OSError:
            return None
        # After the name, which may hold anything: field 3 of proc(5) and those that follow.
        fields = content.rpartition(") ")[2].split()
        return HostUsage(
            busy=(int(fields[11]) + int(fields[12])) / _TICKS,
            threads=int(fields[17]),
            resident_bytes=int(fields[21]) * _PAGE_BYTES,
        )


class HostProtocol(asyncio.Protocol):
    """Reads what a host says; one that cannot be understood is cut off, and so has ended."""

    def __init__(
        self,
        *,
        linked: Callable[[asyncio.WriteTransport], None],
        received: Callable[[Any], None],
        ended: Callable[[], None],
    ) -> None:
        self._linked, self._received, self._ended = linked, received, ended
        self._reader = MessageReader(msgspec.msgpack.Decoder(FromHost))

    @override
    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.WriteTransport = transport
        self._linked(transport)

    @override
    def data_received(self, data: bytes) -> None:
        messages: list[FromHost] = []
        try:
            self._reader.feed(data, messages)
        except msgspec.DecodeError:
            self._transport.abort()
        for message in messages:
            self._received(message)

    @override
    def connection_lost(self, error: Exception | None) -> None:
        self._ended()


def start_host(
    code: str,
    folder: Path,
    *,
    memory_bytes: int,
    import_time: float,
    fork: Fork,
    shows_output: bool,
    is_restart: bool,
) -> HostProcess:
    """Start a host and have it import the code.

    A successor of a lost process leaves the processor to others already during its imports, which
    take most of a start. The first process does not, since callers wait for it.

    `fork` runs what it is given in a thread that lives on: with that, the host would end.

    Raises:
        ValueError: the code cannot be imported, or is no algorithm; the message goes on after the
            name of a model.
    """
    ours, theirs = socket.socketpair()
    marks, descriptor = StepMarks.create()
    spec = HostSpec(
        code=code,
        folder=str(folder),
        memory_bytes=memory_bytes,
        socket=theirs.fileno(),
        marks=descriptor,
        parent=os.getpid(),
    )
    output = None if shows_output else subprocess.DEVNULL
    try:
        process = fork(
            lambda: subprocess.Popen(  # noqa: S603 - this very program
                [sys.executable, "-P", "-m", "backends.algorithms.host", msgspec.json.encode(spec)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # The same modules as here, and no secret.
                env=foreign_environment() | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=(theirs.fileno(), descriptor),
                # A group to kill it by. A session of its own would be scheduled as one with all
                # of the backend, whatever its priority (autogroups of Linux).
                process_group=0,
            )
        )
    finally:
        theirs.close()
        os.close(descriptor)
    if is_restart:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
    host = HostProcess(process, ours, marks)
    try:
        _await_start(host, import_time)
    except ValueError:
        ours.close()
        host.kill()
        raise
    return host


def _await_start(host: HostProcess, import_time: float) -> None:
    """Wait until the code is imported."""
    replies = _Replies(host)
    try:
        if replies.next(_START_TIMEOUT) is None:
            raise ValueError("cannot start a process for its code")
        reply = replies.next(import_time)
    except TimeoutError:
        raise ValueError(
            f"cannot import its code: that takes more than {import_time:g} s"
        ) from None
    if reply is None:
        raise ValueError("cannot import its code: that ends the process")
    if reply.problem:
        raise ValueError(reply.problem)
    host.link.setblocking(False)


class _Replies:
    """Waits for what a host says while it starts, in a thread."""

    def __init__(self, host: HostProcess) -> None:
        self._host = host
        self._reader = MessageReader(msgspec.msgpack.Decoder(StartReply))
        self._received: list[StartReply] = []

    def next(self, time: float) -> StartReply | None:
        """Return the next reply; `None` when the process ended.

        Raises:
            TimeoutError: the process has had `time` seconds.
        """
        host, began, delay = self._host, monotonic(), self._host.delay()
        while not self._received:
            left = Clock(elapsed=monotonic() - began, delay=host.delay() - delay).left(time)
            if left <= 0:
                raise TimeoutError
            host.link.settimeout(left)
            try:
                chunk = host.link.recv(_CHUNK_BYTES)
                self._reader.feed(chunk, self._received)
            except TimeoutError:
                continue
            except (OSError, msgspec.DecodeError):
                return None
            if not chunk:
                return None
        return self._received.pop(0)
