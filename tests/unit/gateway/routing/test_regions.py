"""Choosing a region by its predicted waits and headroom."""

from collections import Counter
from random import Random

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.routing.choice import ChoiceContext
from sluicegate.gateway.routing.endpoint_state import EndpointState
from sluicegate.gateway.routing.regions import Tier, choose_tier
from sluicegate.wire.protocol import Report
from tests.support.dispatching import endpoint

NOW = 1000.0
CONTEXT = ChoiceContext(NOW, RoutingConfig(spill_after=0.05, overflow_after=0.2))


def tier(
    region: str,
    *,
    queued: float = 0.0,
    busy: float = 0.0,
    speed: float = 100.0,
    overflow: bool = False,
) -> list[EndpointState]:
    state = EndpointState(endpoint(f"{region}-0", region=region, overflow=overflow))
    report = Report(queued_seconds=queued, rows_per_second=speed, device_busy_share=busy)
    state.record_report(report, NOW)
    return [state]


def shares(*tiers: Tier) -> Counter[str]:
    random = Random(1)
    return Counter(str(choose_tier(tiers, CONTEXT, random)[0].config.backend) for _ in range(1000))


def test_the_preferred_region_keeps_what_it_finishes_soon() -> None:
    assert shares(tier("eu", queued=0.03), tier("us")) == {"eu-0": 1000}


def test_an_item_that_takes_long_by_itself_does_not_wait() -> None:
    assert shares(tier("eu", speed=5.0), tier("us", speed=5.0)) == {"eu-0": 1000}


def test_what_would_wait_goes_where_it_finishes_sooner() -> None:
    assert shares(tier("eu", queued=0.5), tier("us")) == {"us-0": 1000}
    assert shares(tier("eu", queued=0.5), tier("us", queued=0.6)) == {"eu-0": 1000}


def test_work_spills_in_proportion_to_headroom() -> None:
    found = shares(
        tier("eu", queued=0.15, busy=1.0),
        tier("us", busy=0.7, speed=100.0),
        tier("ap", busy=0.4, speed=100.0),
        tier("sa", queued=0.2, busy=0.0),
    )

    assert found["eu-0"] == found["sa-0"] == 0
    assert 280 < found["us-0"] < 390
    assert 610 < found["ap-0"] < 720


def test_overflow_is_used_only_when_all_others_would_be_late() -> None:
    spare = tier("eu", overflow=True)
    spare[0].config = endpoint("spare-0", overflow=True)

    assert shares(tier("eu", queued=0.15), tier("us", queued=0.18), spare)["spare-0"] == 0
    assert shares(tier("eu", queued=0.5), tier("us"), spare)["spare-0"] == 0
    assert shares(tier("eu", queued=0.5), tier("us", queued=0.3), spare) == {"spare-0": 1000}
    spare[0].record_report(Report(queued_seconds=0.4, rows_per_second=100.0), NOW)
    assert shares(tier("eu", queued=0.5), tier("us", queued=0.3), spare) == {"us-0": 1000}
