"""Starts child processes together, keeps them running, and stops them in order."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Any, Self

from sluicegate.gateway.supervisor.child import Child
from sluicegate.gateway.supervisor.process_table import ProcessEntry, start_of, write_table
from sluicegate.gateway.supervisor.spawn import Spawner
from sluicegate.gateway.supervisor.spec import ProcessRole, ProcessSpec, stop_groups
from sluicegate.gateway.supervisor.watchdog import Watchdog
from sluicegate.gateway.tasks import TaskScope, pause
from sluicegate.gateway.telemetry.restarts import RestartCounts
from sluicegate.wire.listening import refuse_new_connections, wait_until_empty


class Supervisor:
    """Runs child processes while its context lasts."""

    def __init__(
        self, *, root: Path, spawner: Spawner, say: Callable[[str], None], address: str = ""
    ) -> None:
        self._root = root
        self._spawner = spawner
        self.say = say
        self._address = address
        self._children: list[Child] = []
        self._table_is_old = False
        self._group = asyncio.TaskGroup()
        self._watchdog = Watchdog(lambda: self._children)
        self._watching: asyncio.Task[None] | None = None
        self.restarts = RestartCounts(root)

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self.restarts.forget_former()
        self._record()
        self._watching = self._group.create_task(self._watchdog.run())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for child in self._children:
            child.kill()
        await self._group.__aexit__(None, None, None)

    def start(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        """Start a child for each spec. Return the children without waiting until they are ready."""
        children = [
            Child(
                spec=spec,
                spawner=self._spawner,
                say=self.say,
                changed=self._changed,
                restarted=partial(self.restarts.add, spec.role.value),
            )
            for spec in specs
        ]
        self._children += children
        for child in children:
            self._group.create_task(child.run())
        return children

    async def ready(self, children: Sequence[Child]) -> None:
        """Wait until all `children` are ready.

        Raises:
            CannotStart: a child was not ready in time.
        """
        await in_parallel(*(child.until_ready() for child in children))

    async def stop(self, force: asyncio.Event, *, delay: float = 0.0) -> None:
        """Stop all children in the order of their roles. As soon as `force` is set, kill them.

        Children that serve HTTP first report for `delay` seconds that they are not ready, and then
        stop.
        """
        children = {child.spec.name: child for child in self._children}
        await self._announce(force, delay)
        for group in stop_groups(child.spec for child in self._children):
            await _close_listeners(group, force)
            stopping = [children[spec.name] for spec in group if children[spec.name].pid]
            ended = await asyncio.gather(*(children[spec.name].stop(force) for spec in group))
            names = ", ".join(child.spec.name for child in stopping)
            if names:
                self.say(f"stopped {names}" + ("" if all(ended) else " (by force)"))

    async def _announce(self, force: asyncio.Event, delay: float) -> None:
        serving = [child for child in self._children if child.spec.listener is not None]
        for child in serving:
            child.announce_stop()
        if delay and any(child.pid for child in serving) and not force.is_set():
            self.say(f"reporting not ready; still serving for {delay:g} s")
            await pause(force, delay)

    def _changed(self, ended: int | None) -> None:
        if ended is not None:
            # The gauges of a process that has ended must not be added to the gauges of live
            # processes.
            for left in (self._root / "metrics").glob(f"gauge_live*_{ended}.db"):
                with contextlib.suppress(OSError):  # the disk may be read-only
                    left.unlink()
        self._record()

    def _record(self) -> None:
        role = ProcessRole.SUPERVISOR
        own = ProcessSpec(name=role, role=role, argv=(), address=self._address)
        running = [(child.spec, child.pid) for child in self._children if child.pid is not None]
        entries = [_entry(spec, pid) for spec, pid in [(own, os.getpid()), *running]]
        trouble = write_table(self._root, entries)
        if trouble and not self._table_is_old:
            self.say(f"`{self._root}` cannot be written ({trouble}); free some space on its disk")
        self._table_is_old = bool(trouble)


async def _close_listeners(group: Sequence[ProcessSpec], force: asyncio.Event) -> None:
    """Wait until the backlogs of the group's listeners are empty, and close the listeners."""
    listeners = [spec.listener for spec in group if spec.listener is not None]
    if not listeners or listeners[0].fileno() < 0:
        return
    if not force.is_set():
        for listener in listeners:
            refuse_new_connections(listener)
        await wait_until_empty(listeners)
    for listener in listeners:
        listener.close()


async def in_parallel(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run coroutines at the same time, and return their results.

    If a coroutine raises an error, all other coroutines are cancelled, and the error is raised.
    """
    async with TaskScope() as tasks:
        return await asyncio.gather(*map(tasks.create_task, work))


async def supervise(
    supervisor: Supervisor,
    start: Callable[[], Awaitable[None]],
    *,
    reload: Callable[[], Awaitable[None]],
    delay: float = 0.0,
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Run `start`, wait for SIGINT or SIGTERM, and stop all children.

    A second signal makes the stop immediate. After SIGTERM, children continue to serve for `delay`
    seconds but report that they are not ready, so that load balancers can react. After SIGINT,
    which comes from a terminal, children stop without this delay. SIGHUP runs `reload`. `beside`
    runs until all children have stopped.

    Raises:
        CannotStart: `start` raised it. All running children were stopped first.
    """
    signals, hangup, is_ready = _StopSignals(supervisor.say), asyncio.Event(), asyncio.Event()

    async def starting() -> None:
        await start()
        is_ready.set()
        await signals.stopping.wait()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(SIGINT, signals.interrupt)
    loop.add_signal_handler(SIGTERM, signals.stop)
    loop.add_signal_handler(SIGHUP, hangup.set)
    async with supervisor, TaskScope() as tasks:
        tasks.start(_reloading(hangup, reload))
        if beside is not None:
            tasks.start(beside())
        try:
            await _first_of(starting(), signals.stopping.wait())
        finally:
            waits = is_ready.is_set() and not signals.is_interrupted
            await supervisor.stop(signals.force, delay=delay if waits else 0.0)


class _StopSignals:
    """Holds the stop signals that have arrived."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.stopping, self.force = asyncio.Event(), asyncio.Event()
        self.is_interrupted = False
        self._say = say

    def interrupt(self) -> None:
        self.is_interrupted = True
        self.stop()

    def stop(self) -> None:
        if self.stopping.is_set():
            self.force.set()
        else:
            self._say("stopping; repeat the signal to force it")
        self.stopping.set()


async def _reloading(hangup: asyncio.Event, reload: Callable[[], Awaitable[None]]) -> None:
    while True:
        await hangup.wait()
        hangup.clear()
        await reload()


async def _first_of(*work: Coroutine[Any, Any, Any]) -> None:
    """Run coroutines at the same time until one ends or fails. Then cancel all other coroutines."""
    async with TaskScope() as tasks:
        running = [tasks.create_task(each) for each in work]
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


def _entry(spec: ProcessSpec, pid: int) -> ProcessEntry:
    return ProcessEntry(
        role=spec.role,
        region=spec.region,
        index=spec.index,
        pid=pid,
        address=spec.address,
        started=start_of(pid),
    )
