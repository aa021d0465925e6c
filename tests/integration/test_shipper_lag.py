"""The lag of the shipper is the age of what is not in the stream, under steady load too."""

import errno
import os
import time
from functools import partial
from pathlib import Path

import pytest
from typing_extensions import override

from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.events.reader import LogReader
from sluicegate.gateway.workers.shipper import Shipper
from testing.ports import free_port
from testing.valkey import Valkey
from testing.waiting import until
from tests.support.events import make_event
from tests.support.pipeline import open_pipeline, running

pytestmark = pytest.mark.anyio


class UnreadLog(LogReader):
    """Fails as on a disk that is broken."""

    @override
    def unread_bytes(self) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def _has_shipped(shipper: Shipper, count: int) -> bool:
    return shipper._counts["events"] == count


async def test_a_log_under_steady_load_that_is_shipped_does_not_lag(tmp_path: Path) -> None:
    with Valkey() as server, EventLog(tmp_path / "events", name="w0") as log:
        async with open_pipeline(tmp_path, server.url) as pipeline:
            shipper = pipeline.shipper()
            async with running(shipper.run):
                for number in range(3):
                    began = time.monotonic()
                    log.publish(make_event(number))
                    # Read while the event waits, and not again before it is shipped.
                    lag = shipper.statistics().lag
                    assert lag <= time.monotonic() - began
                    await until(partial(_has_shipped, shipper, number + 1))


async def test_a_shipper_that_never_reached_redis_tells_what_waits(tmp_path: Path) -> None:
    nobody = f"redis://127.0.0.1:{free_port()}"
    with EventLog(tmp_path / "events", name="w0") as log:
        log.publish(make_event(0))
        async with open_pipeline(tmp_path, nobody) as pipeline:
            shipper = pipeline.shipper()

            await shipper.run_once()
            first = shipper.statistics()
            await until(lambda: shipper.statistics().lag > first.lag, what="a longer wait")

    assert first.failures == 1
    assert first.unshipped_bytes > 0


async def test_a_disk_that_cannot_be_read_does_not_end_the_shipper(tmp_path: Path) -> None:
    nobody = f"redis://127.0.0.1:{free_port()}"
    with EventLog(tmp_path / "events", name="w0") as log:
        log.publish(make_event(0))
        async with open_pipeline(tmp_path, nobody) as pipeline:
            shipper = pipeline.shipper()
            await shipper.run_once()
            (opened,) = shipper._logs.values()
            opened.reader = UnreadLog(opened.reader.path_of(1).parent)

            await shipper.run_once()

    assert shipper.statistics().failures == 2
