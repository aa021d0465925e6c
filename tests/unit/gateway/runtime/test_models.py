"""The follower of models ends, whatever it is doing when it is cancelled."""

import asyncio
import contextlib

import pytest
from typing_extensions import override

from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Topic
from sluicegate.gateway.runtime.models import ModelsFollower


class SwallowingControl(Control):
    """Loses a cancellation that comes while it writes, as `asyncio.wait_for` of Python 3.11 may."""

    def __init__(self) -> None:
        super().__init__(connect("redis://127.0.0.1:1/0", timeout=0.1))
        self.writing = asyncio.Event()

    @override
    async def heartbeat(self, worker: str, report: bytes) -> frozenset[Topic]:
        self.writing.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return frozenset()


@pytest.mark.anyio
async def test_it_ends_though_a_command_to_redis_lost_the_cancellation() -> None:
    async def reload() -> None:
        pass

    control = SwallowingControl()
    follower = ModelsFollower(control=control, worker="w", reload=reload)
    async with asyncio.timeout(30.0):
        async with follower:
            follower.on_version(1)
            follower.on_version(2)
            await control.writing.wait()
