"""Starts, watches and kills the process of an algorithm host."""

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

from sluicegate.backends.algorithms.confinement import NICENESS
from sluicegate.backends.algorithms.host_messages import FromHost, HostSpec, StartReply
from sluicegate.backends.algorithms.starvation import CoreDelays, ProcessTime
from sluicegate.backends.algorithms.step_marks import StepMarks
from sluicegate.backends.settings import foreign_environment
from sluicegate.wire.loop_delays import waited_for_core
from sluicegate.wire.protocol import MessageReader

# Seconds for the start of Python and its libraries. The budget's `import_time` bounds the import of
# the algorithm's code.
_START_TIMEOUT = 60.0
_LOWEST = 19
_CHUNK_BYTES = 65_536
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Keeps libraries from starting a thread for each core. Such threads would compete with models.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)

Fork = Callable[[Callable[[], "subprocess.Popen[bytes]"]], "subprocess.Popen[bytes]"]


class HostUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a host's resource usage; `busy` is the host's CPU time so far, in seconds."""

    threads: int
    resident_bytes: int
    busy: float


class HostProcess:
    """Owns an algorithm host's process, its socket, and the memory that records which item runs."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", link: socket.socket, marks: StepMarks
    ) -> None:
        self._process = process
        self._folder = Path(f"/proc/{process.pid}")
        self._delays = CoreDelays(process.pid)
        self._own_delay = 0.0
        self.link = link
        self.marks = marks

    def kill(self) -> None:
        """Kill the process group without waiting for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        threading.Thread(target=self._process.wait, daemon=True).start()

    def lower_priority(self) -> None:
        """Give all threads of the process the lowest scheduling priority."""
        with contextlib.suppress(OSError):  # a thread, or the whole process, may have ended
            for thread in (self._folder / "task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _LOWEST)

    def delay(self) -> float:
        """Return for how many seconds the process has waited for a processor core so far.

        The waits of the calling thread, which answers the process, count as well.
        """
        self._own_delay = waited_for_core()
        return self._delays.read(has_threads=not self.marks.are_exact) + self._own_delay

    @property
    def known_delay(self) -> float:
        """The part of `delay` that was known at its last reading, which takes 0.1 ms."""
        return self._delays.known + self._own_delay

    def usage(self) -> HostUsage | None:
        """Return the present resource usage of the process, or `None` if the process has ended."""
        try:
            content = (self._folder / "stat").read_text()
        except OSError:
            return None
        # Field 2, the name in brackets, may contain spaces. So read from field 3 of proc(5) on.
        fields = content.rpartition(") ")[2].split()
        return HostUsage(
            busy=(int(fields[11]) + int(fields[12])) / _TICKS,
            threads=int(fields[17]),
            resident_bytes=int(fields[21]) * _PAGE_BYTES,
        )


class HostProtocol(asyncio.Protocol):
    """Reads the messages of a host; closes the connection after an invalid message."""

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
    """Start a host process and wait until it has imported the code.

    With `is_restart`, the process imports the code with a low priority, because the import takes
    most of the time of a start. `fork` must run its argument in a thread that outlives the host.
    Otherwise, Linux kills the host when that thread ends.

    Raises:
        ValueError: the code cannot be imported, or is not a valid algorithm. The message has no
            subject, so that callers can put the model's name before it.
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
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "sluicegate.backends.algorithms.host",
                    msgspec.json.encode(spec),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # The host finds the same modules as this process, and gets no secrets.
                env=foreign_environment() | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=(theirs.fileno(), descriptor),
                # In its own process group, so that `kill` reaches its children. Not in its own
                # session, because Linux's autogroup scheduling would give the session as much
                # processor time as the whole backend.
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
            f"cannot import its code: the import takes more than {import_time:g} s"
        ) from None
    if reply is None:
        raise ValueError("cannot import its code: the import ends the process")
    if reply.problem:
        raise ValueError(reply.problem)
    host.link.setblocking(False)


class _Replies:
    """Receives the `StartReply` messages of a host; blocks the calling thread."""

    def __init__(self, host: HostProcess) -> None:
        self._host = host
        self._reader = MessageReader(msgspec.msgpack.Decoder(StartReply))
        self._received: list[StartReply] = []

    def next(self, time: float) -> StartReply | None:
        """Return the next reply, or `None` if the process ended.

        Raises:
            TimeoutError: no reply came within `time` seconds. Time in which the process waits for a
                processor core does not count.
        """
        host, began, delay = self._host, monotonic(), self._host.delay()
        while not self._received:
            left = ProcessTime(elapsed=monotonic() - began, delay=host.delay() - delay).left(time)
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
