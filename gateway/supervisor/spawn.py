"""Starts child processes that end when their parent ends."""

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sluicegate.gateway.settings import process_environment
from sluicegate.gateway.supervisor.errors import CannotStart
from sluicegate.gateway.supervisor.spec import ProcessSpec

_PR_SET_PDEATHSIG = 1


class Spawner:
    """Starts child processes.

    A child gets the variables in its own spec. It also gets the supervisor's environment, except
    the admin key, the demo key and the TLS variables of backends.
    """

    def __init__(self, *, logs: Path | None) -> None:
        self._logs = logs
        self._environment = _inherited_environment()
        self._before_exec = _die_with_parent()

    def log_of(self, spec: ProcessSpec) -> Path | None:
        """Return the log file of a child, or `None` if the child does not log to a file."""
        return None if self._logs is None else self._logs / f"{spec.name}.log"

    async def spawn(
        self, spec: ProcessSpec, *, heartbeat: int | None = None
    ) -> asyncio.subprocess.Process:
        """Start a child, which writes its heartbeats to the pipe `heartbeat`.

        Raises:
            OSError: the program cannot be started.
        """
        path = self.log_of(spec)
        listeners = (*((spec.listener,) if spec.listener else ()), *spec.siblings)
        inherited = [listener.fileno() for listener in listeners]
        if -1 in inherited:  # the listener was closed just before a restart
            raise OSError(errno.EBADF, "its socket is closed")
        own = dict(spec.environment)
        if heartbeat is not None:
            inherited.append(heartbeat)
            own[spec.heartbeat_variable] = str(heartbeat)
        # The log is opened for appending, because rotation empties the file while the child has it
        # open.
        with contextlib.nullcontext() if path is None else path.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env={**self._environment, **own},
                pass_fds=inherited,
                # A child in its own session does not get the terminal's Ctrl-C. Only the supervisor
                # gets the Ctrl-C, and then stops the children in order.
                start_new_session=True,
                preexec_fn=self._before_exec,
            )

    async def run_step(
        self,
        name: str,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        secret: str = "",
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Run a program to its end.

        The program reads `secret` from its standard input. Its output goes to `tell` and to a log.

        Raises:
            CannotStart: the program failed. The message contains the last line of its output.
        """
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**self._environment, **environment},
            start_new_session=True,
            preexec_fn=self._before_exec,
        )
        path = Path(os.devnull) if self._logs is None else self._logs / f"{name}.log"
        try:
            last = await _talk(process, secret, path, tell)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise CannotStart(f"{name} failed: {last}; see {path}")


def _inherited_environment() -> dict[str, str]:
    # The backends on this machine need no TLS, because they listen on loopback only.
    own = ("SLUICEGATE_ADMIN_KEY", "SLUICEGATE_DEMO_KEY", "SLUICEGATE_BACKEND_TLS_")
    inherited = process_environment().items()
    return {name: value for name, value in inherited if not name.startswith(own)}


async def _talk(
    process: asyncio.subprocess.Process, secret: str, path: Path, tell: Callable[[str], None]
) -> str:
    """Write `secret` to a process, and read all of its output. Return the last line."""
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process has no pipes")
    with contextlib.suppress(ConnectionError):  # it ended without reading; its output explains why
        process.stdin.write(secret.encode())
        await process.stdin.drain()
    process.stdin.close()
    last = "no output"
    with path.open("w") as log:
        async for line in process.stdout:
            if text := line.decode(errors="replace").strip():
                last = text.removeprefix("Error: ")
                log.write(text + "\n")
                tell(text)
    await process.wait()
    return last


def _die_with_parent() -> Callable[[], None] | None:
    """Return a function for the child to call, so that the child is killed when its parent ends.

    More exactly, the kernel kills the child when the thread that forked the child ends. A
    supervisor forks in its main thread, which runs the event loop.
    """
    if sys.platform != "linux":
        return None
    # The function is looked up before the fork, because the child must not take locks before
    # `exec`.
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def before_exec() -> None:
        # SIGUSR1 is ignored at first, because it would end a child that has no handler for SIGUSR1
        # yet.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the child made this call
            os._exit(1)

    return before_exec
