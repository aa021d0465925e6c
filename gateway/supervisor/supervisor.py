"""Owns the child processes: starts them together, keeps them running, stops them in order."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, Signals
from types import TracebackType
from typing import Any, Self

from gateway.supervisor.child import Child
from gateway.supervisor.process_table import Entry, start_of, write_table
from gateway.supervisor.spawn import Spawner
from gateway.supervisor.spec import ProcessSpec, Role, stop_groups


class Supervisor:
    """The children of this process, while it is entered."""

    def __init__(
        self, *, root: Path, spawner: Spawner, say: Callable[[str], None], address: str = ""
    ) -> None:
        self._root = root
        self._spawner = spawner
        self._say = say
        self._address = address
        self._children: list[Child] = []
        self._table_is_old = False
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._record()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children:
            child.kill()
        await self._group.__aexit__(None, None, None)

    def start(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        """Start a child for each spec; return them at once."""
        children = [
            Child(spec=spec, spawner=self._spawner, say=self._say, changed=self._changed)
            for spec in specs
        ]
        self._children += children
        for child in children:
            self._group.create_task(child.run())
        return children

    async def ready(self, children: Sequence[Child]) -> None:
        """Wait until all of `children` are ready.

        Raises:
            CannotStart: one of them is not, in its time.
        """
        await in_parallel(*(self._ready(child) for child in children))

    async def stop(self, force: asyncio.Event) -> None:
        """Stop every child, in the order of roles; at once when `force` is set."""
        children = {child.spec.name: child for child in self._children}
        for group in stop_groups(child.spec for child in self._children):
            stopping = [children[spec.name] for spec in group if children[spec.name].pid]
            ended = await asyncio.gather(*(children[spec.name].stop(force) for spec in group))
            names = ", ".join(child.spec.name for child in stopping)
            if names:
                self._say(f"stopped {names}" + ("" if all(ended) else " (by force)"))

    async def _ready(self, child: Child) -> None:
        await child.until_ready()
        self._say(f"{child.spec.name} is ready")

    def _changed(self, ended: int | None) -> None:
        if ended is not None:
            # A live gauge of a process that is gone must not be added to those of the living.
            for left in (self._root / "metrics").glob(f"gauge_live*_{ended}.db"):
                left.unlink(missing_ok=True)
        self._record()

    def _record(self) -> None:
        own = Entry(
            role=Role.SUPERVISOR,
            region="",
            index=0,
            pid=os.getpid(),
            address=self._address,
            started=start_of(os.getpid()),
        )
        running = [_entry(child) for child in self._children if child.pid is not None]
        trouble = write_table(self._root, [own, *running])
        if trouble and not self._table_is_old:
            self._say(f"`{self._root}` cannot be written ({trouble}): free space on its disk")
        self._table_is_old = bool(trouble)


async def in_parallel(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Return what `work` does; the first failure ends the rest and is raised as it is."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def supervise(
    supervisor: Supervisor,
    start: Callable[[], Awaitable[None]],
    *,
    reload: Callable[[], Awaitable[None]],
    say: Callable[[str], None],
) -> None:
    """Run `start`, then wait for SIGINT or SIGTERM, then stop every child; a second one forces it.

    SIGHUP runs `reload`.

    Raises:
        CannotStart: `start` did; the children that ran are stopped.
    """
    stop, force, hangup = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def stopping() -> None:
        if stop.is_set():
            force.set()
        else:
            say("stopping; again to force it")
        stop.set()

    async with supervisor:
        reloading = asyncio.create_task(_reloading(hangup, reload))
        try:
            with _signals({SIGINT: stopping, SIGTERM: stopping, SIGHUP: hangup.set}):
                try:
                    await _until(stop, start)
                finally:
                    await supervisor.stop(force)
        finally:
            reloading.cancel()
            await asyncio.gather(reloading, return_exceptions=True)


async def _reloading(hangup: asyncio.Event, reload: Callable[[], Awaitable[None]]) -> None:
    while True:
        await hangup.wait()
        hangup.clear()
        await reload()


async def _until(stop: asyncio.Event, start: Callable[[], Awaitable[None]]) -> None:
    """Run `start` and wait for `stop`, which also ends a start that is still going on."""

    async def starting() -> None:
        await start()
        await stop.wait()

    tasks = [asyncio.create_task(starting()), asyncio.create_task(stop.wait())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _signals(handlers: Mapping[Signals, Callable[[], None]]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


def _entry(child: Child) -> Entry:
    spec, pid = child.spec, child.pid or 0
    return Entry(
        role=spec.role,
        region=spec.region,
        index=spec.index,
        pid=pid,
        address=spec.address,
        started=start_of(pid),
    )
