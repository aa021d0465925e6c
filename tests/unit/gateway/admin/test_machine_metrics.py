"""Figures of the machine: running totals of Redis outlive the process that shows them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sluicegate.gateway.admin.machine_metrics import MachineMetrics
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.redis.pipeline import Command, Replies
from sluicegate.gateway.settings import load_settings
from sluicegate.gateway.telemetry.instruments import Instruments

pytestmark = pytest.mark.anyio


class Redis:
    """Tells how many entries it evicted."""

    def __init__(self) -> None:
        self.evicted = 0

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        return [f"evicted_keys:{self.evicted}\r\n".encode(), 9]

    def execute_nowait(
        self, commands: Sequence[Command], on_done: Callable[[Replies], object]
    ) -> bool:
        return False

    async def aclose(self) -> None:
        return


async def test_a_process_that_starts_does_not_count_old_evictions_again(tmp_path: Path) -> None:
    redis, registry = Redis(), CollectorRegistry()
    settings = load_settings({"SLUICEGATE_DATA_DIR": str(tmp_path)})
    counts: list[float | None] = []

    with Ledger.create(settings.ledger) as ledger:
        figures = MachineMetrics(
            settings=settings,
            ledger=ledger,
            cache_redis=redis,
            instruments=Instruments(registry),
        )
        for redis.evicted in (500, 507, 3):  # the last after a restart of Redis
            await figures.publish()
            counts.append(
                registry.get_sample_value("sluicegate_cache_evictions_total", {"tier": "redis"})
            )

    assert counts == [0, 7, 10]
