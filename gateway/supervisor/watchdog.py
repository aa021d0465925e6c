"""Replaces children that are silent or that exceed their memory limit."""

import asyncio
from collections.abc import Callable, Sequence

from sluicegate.gateway.supervisor.child import Child
from sluicegate.gateway.supervisor.liveness import Activity, activity_of
from sluicegate.gateway.supervisor.spec import NO_RESPONSE

LOOK_INTERVAL = 1.0
SILENT, MEMORY = "silent", "memory"
# A process that exceeds its memory limit by this factor is killed. There may be no time to
# terminate it gently, because its memory can grow faster than it finishes its work.
_RUNAWAY = 1.5
_MEBIBYTE = 1024 * 1024


class Watchdog:
    """Checks every child once a second by reading `/proc`.

    A child that is silent for `spec.silent_within` seconds is killed. Children with more memory
    than `spec.memory_bytes` are terminated, one at a time. A child with more than 1.5 times
    `spec.memory_bytes` is killed.
    """

    def __init__(self, children: Callable[[], Sequence[Child]]) -> None:
        self._children = children
        self._replacing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Check the children until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            before = loop.time()
            while True:
                await asyncio.sleep(LOOK_INTERVAL)
                now = loop.time()
                children = [child for child in self._children() if child.is_watched]
                for child in children:
                    if child.spec.silent_within and not child.spec.heartbeat_variable:
                        group.create_task(_probe(child))
                for child in children:
                    self._look(child, now - before, group)
                before = now

    def _look(self, child: Child, passed: float, group: asyncio.TaskGroup) -> None:
        activity = None if child.pid is None else activity_of(child.pid)
        silent = child.silence.look(passed, activity)
        bound = child.spec.silent_within if child.has_responded else child.spec.ready_within
        if child.spec.silent_within and silent > bound:
            child.replace(SILENT, f"has not responded for {silent:.0f} s")
        elif activity is not None:
            self._look_at_memory(child, activity, group)

    def _look_at_memory(self, child: Child, activity: Activity, group: asyncio.TaskGroup) -> None:
        bound, taken = child.spec.memory_bytes, activity.private_bytes
        if not bound or taken <= bound:
            return
        why = f"uses {taken // _MEBIBYTE} MiB, more than its limit of {bound // _MEBIBYTE} MiB"
        if taken > bound * _RUNAWAY:
            child.replace(MEMORY, why)
        elif self._replacing is None or self._replacing.done():
            self._replacing = group.create_task(child.replace_gently(MEMORY, why))


async def _probe(child: Child) -> None:
    """Probe a child that sends no heartbeats, and record its response, even if it is not ready."""
    pid = child.pid
    if await child.spec.probe() != NO_RESPONSE and child.pid == pid:
        child.record_response()
