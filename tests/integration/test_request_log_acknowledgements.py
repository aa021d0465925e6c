"""The request log has a line for each request, also where an acknowledgement is lost."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from typing_extensions import override

from sluicegate.gateway.events.block import STREAM
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.workers.group import GroupReader, StreamEntry
from sluicegate.gateway.workers.request_log import GROUP
from testing.waiting import until
from tests.support.events import make_event
from tests.support.pipeline import open_pipeline, running

pytestmark = pytest.mark.anyio


class Unacknowledged(GroupReader):
    """A reader whose first acknowledgement is lost on its way."""

    lost = 0

    @override
    async def acknowledge(self, entries: Sequence[StreamEntry]) -> None:
        """Fail at first."""
        if not self.lost:
            self.lost += 1
            self.reread()
            raise RedisConnectionError("Connection lost")
        await super().acknowledge(entries)


async def test_a_lost_acknowledgement_writes_no_line_twice(tmp_path: Path, valkey: str) -> None:
    path = tmp_path / "requests.log"
    async with open_pipeline(tmp_path, valkey) as pipeline:
        request_log = pipeline.request_log(path)
        request_log._group.__class__ = Unacknowledged
        with EventLog(pipeline.events, name="w0") as log:
            for number in range(20):
                log.publish(make_event(number))
            async with running(pipeline.shipper().run, request_log.run):
                await until(lambda: request_log.statistics().lines >= 20, what="all are written")
                async with asyncio.timeout(10):
                    while (await pipeline.redis.xpending(STREAM, GROUP))["pending"]:
                        pass

    assert path.read_bytes().count(b"\n") == 20
