"""Keeps a process running: starts it, restarts it if it crashes or hangs, and stops it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from sluicegate.gateway.supervisor.errors import CannotStart
from sluicegate.gateway.supervisor.liveness import Silence
from sluicegate.gateway.supervisor.priority import end_giving_way
from sluicegate.gateway.supervisor.spawn import Spawner
from sluicegate.gateway.supervisor.spec import ProcessSpec
from sluicegate.gateway.tasks import TaskScope, pause

_PROBE_INTERVAL = 0.05
FIRST_DELAY, LONGEST_DELAY, HEALTHY = 0.1, 5.0, 10.0
ENDED = "ended"


class Child:
    """Runs the process that `spec` describes, and restarts the process when it ends.

    `say` prints a line for the operator. `changed` is called whenever `pid` changes. Its argument
    is the pid of the process that ended, or `None` if a process has started. `restarted` is called
    at each restart, with the reason.

    If the first process ends before it is ready, it is not restarted, and `until_ready` raises an
    error.
    """

    def __init__(
        self,
        *,
        spec: ProcessSpec,
        spawner: Spawner,
        say: Callable[[str], None],
        changed: Callable[[int | None], None],
        restarted: Callable[[str], None],
    ) -> None:
        self.spec = spec
        self.pid: int | None = None
        self.silence = Silence()
        self.has_responded = False
        """Whether the current process has sent a heartbeat or has responded to a probe."""
        self._spawner = spawner
        self._say = say
        self._changed = changed
        self._restarted = restarted
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._was_ready = False
        self._is_leaving = False
        self._end = ""
        self._reason = ENDED

    @property
    def is_watched(self) -> bool:
        """Whether the process runs and is not being stopped."""
        return self.pid is not None and not self._stopping.is_set()

    async def run(self) -> None:
        """Keep the process running until `stop` is called."""
        clock = asyncio.get_running_loop().time
        delay = 0.0
        try:
            while not self._stopping.is_set():
                started = clock()
                self._reason = ENDED
                self._end = await self._run_once()
                if self._stopping.is_set() or not self._was_ready:
                    break
                delay = restart_delay(delay, lived=clock() - started)
                self._restarted(self._reason)
                self._say(f"{self.spec.name} {self._end}; restarting in {delay:.1f} s; {self._see}")
                await pause(self._stopping, delay)
        finally:
            self._ended.set()

    async def until_ready(self) -> None:
        """Wait until the process reports that it is ready.

        Raises:
            CannotStart: the process ended, or was not ready in time.
        """
        loop = asyncio.get_running_loop()
        started, within, saw_response = loop.time(), self.spec.ready_within, False
        missing = "does not run yet"
        while loop.time() < started + within:
            if self.has_responded and not saw_response:
                saw_response = True
                passed = loop.time() - started
                within = min(within, passed + self.spec.ready_after_response_within)
            if self._ended.is_set():
                log = self._spawner.log_of(self.spec)
                said = "" if log is None else last_line(log)
                raise CannotStart(f"{self.spec.name} {self._end} while starting{said}; {self._see}")
            if self.pid is not None and not (missing := await self.spec.probe()):
                self._was_ready = True
                self._say(f"{self.spec.name} is ready")
                return
            await pause(self._ended, _PROBE_INTERVAL)
        raise CannotStart(f"{self.spec.name} {missing} within {round(within, 1):g} s; {self._see}")

    def record_response(self) -> None:
        """Record that the process has sent a heartbeat or has responded to a probe."""
        self.silence.record_response()
        if not self.has_responded:
            self.has_responded = True
            if self._is_leaving:
                self._signal(signal.SIGUSR1)  # the process before it had received this signal

    def announce_stop(self) -> None:
        """Make the process report that it is not ready, while it continues to serve requests."""
        self._is_leaving = True
        if self.has_responded:
            self._signal(signal.SIGUSR1)

    def replace(self, reason: str, why: str) -> None:
        """Kill the process, so that it is restarted. The operator is shown the reason `why`."""
        self._reason = reason
        self.silence = Silence()
        self._say(f"{self.spec.name} {why}; it is killed")
        self._signal(signal.SIGKILL)

    async def replace_gently(self, reason: str, why: str) -> None:
        """Terminate the process. If it does not end in time, kill it.

        Then wait until the new process has started.
        """
        pid, self._reason = self.pid, reason
        self._say(f"{self.spec.name} {why}; it is replaced")
        await self._terminate()
        if not await self._until(lambda: self.pid != pid, self.spec.replace_within):
            self._signal(signal.SIGKILL)
        await self._until(lambda: self.has_responded and self.pid != pid, self.spec.ready_within)

    async def stop(self, force: asyncio.Event) -> bool:
        """Terminate the process, and return whether it ended without being killed.

        The process is killed if it does not end in time, or as soon as `force` is set.
        """
        self._stopping.set()
        await self._terminate()
        async with TaskScope() as tasks:
            waits = [tasks.create_task(self._ended.wait()), tasks.create_task(force.wait())]
            await asyncio.wait(
                waits, timeout=self.spec.stop_within, return_when=asyncio.FIRST_COMPLETED
            )
        by_itself = self._ended.is_set()
        self._signal(signal.SIGKILL)
        await self._ended.wait()
        return by_itself

    def kill(self) -> None:
        """Kill the process."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    async def _run_once(self) -> str:
        self.silence, self.has_responded = Silence(), False
        with contextlib.ExitStack() as stack:
            try:
                with self._heartbeats(stack) as descriptor:
                    process = await self._spawner.spawn(self.spec, heartbeat=descriptor)
            except OSError as error:
                return f"cannot be run ({error.strerror})"
            self._process, self.pid = process, process.pid
            if self._stopping.is_set():
                self._signal(signal.SIGTERM)  # `stop` was called while the process was starting
            self._changed(None)
            code = await process.wait()
            self._process = self.pid = None
            self._changed(process.pid)
        return f"died ({signal.Signals(-code).name})" if code < 0 else f"exited with code {code}"

    @contextlib.contextmanager
    def _heartbeats(self, stack: contextlib.ExitStack) -> Iterator[int | None]:
        """Yield the descriptor for the process's heartbeats, or `None` if it sends none.

        Heartbeats are read until `stack` is closed.
        """
        if not self.spec.heartbeat_variable:
            yield None
            return
        loop = asyncio.get_running_loop()
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        stack.callback(os.close, reader)

        def read() -> None:
            with contextlib.suppress(BlockingIOError):
                if os.read(reader, 4096):
                    self.record_response()
                else:
                    loop.remove_reader(reader)  # the process has ended

        loop.add_reader(reader, read)
        stack.callback(loop.remove_reader, reader)
        try:
            yield writer
        finally:
            os.close(writer)

    async def _terminate(self) -> None:
        self._signal(signal.SIGTERM)
        if self.spec.gives_way and self.pid is not None:
            await end_giving_way(self.pid)

    async def _until(self, holds: Callable[[], bool], within: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        while not holds() and not self._stopping.is_set():
            if loop.time() > deadline:
                return False
            await asyncio.sleep(_PROBE_INTERVAL)
        return True

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    @property
    def _see(self) -> str:
        log = self._spawner.log_of(self.spec)
        return "see its lines in this output" if log is None else f"see {log}"


def restart_delay(former: float, *, lived: float) -> float:
    """Return the seconds to wait before the restart of a process that lived for `lived` seconds.

    `former` is the delay before the last restart. The delay doubles with each restart, from
    `FIRST_DELAY` up to `LONGEST_DELAY`. If the process lived for at least `HEALTHY` seconds, the
    delay is `FIRST_DELAY` again.
    """
    is_first = not former or lived >= HEALTHY
    return FIRST_DELAY if is_first else min(LONGEST_DELAY, 2 * former)


def last_line(log: Path) -> str:
    """Return the last line of a log, shortened and in parentheses, to append to a sentence."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f" (`{lines[-1].strip()[:200]}`)" if lines else ""
