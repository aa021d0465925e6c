"""A timer that is late because code held the loop differs from one that waited for a core."""

import asyncio
from time import thread_time

import pytest
from prometheus_client import CollectorRegistry

from sluicegate.gateway.telemetry.process_metrics import ProcessMetrics, measured_process
from sluicegate.wire.loop_delays import INTERVAL

_HELD = 2 * INTERVAL + 0.1


def _later_than_100_ms(registry: CollectorRegistry, kind: str) -> float:
    name, role = f"sluicegate_event_loop_{kind}_seconds", {"role": "gateway"}
    every = registry.get_sample_value(f"{name}_count", role) or 0
    return every - (registry.get_sample_value(f"{name}_bucket", role | {"le": "0.1"}) or 0)


def test_time_without_a_core_does_not_hold_the_loop() -> None:
    registry = CollectorRegistry()
    metrics = ProcessMetrics(registry, role="gateway")

    metrics.late(0.3, held=0.05)
    metrics.publish()

    assert _later_than_100_ms(registry, "lag") == 1
    assert _later_than_100_ms(registry, "held") == 0


@pytest.mark.anyio
async def test_code_that_computes_holds_the_loop() -> None:
    registry = CollectorRegistry()

    async with measured_process("gateway", registry):
        ends_at = thread_time() + _HELD
        while thread_time() < ends_at:
            pass
        for _ in range(2):  # the timer that is due becomes ready, and runs
            await asyncio.sleep(0)

    assert _later_than_100_ms(registry, "lag") >= 1
    assert _later_than_100_ms(registry, "held") >= 1
