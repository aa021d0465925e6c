"""The next share of a region leaves the others what they may still spend."""

import pytest
from msgspec.structs import replace

from sluicegate.gateway.regional_limits.policy import LEASE, OtherRegions, ShareEntry, decide

SECOND = 1_000_000_000
NOW = 1_000 * SECOND
BUCKET = "rl:{acme}:t:minute"


def entry(
    region: str, *, used: float, held: float | None = None, demand: float = 0.0
) -> ShareEntry:
    """Return an entry whose `held`, if it is not `used`, was just left behind."""
    held = used if held is None else held
    lowered = NOW if held > used else 0
    return ShareEntry(
        bucket=BUCKET,
        region=region,
        used=used,
        held=held,
        before=used,
        lowered=lowered,
        demand=demand,
        counted=NOW,
    )


def decided(*entries: ShareEntry, own: str = "eu", seen: int = NOW, now: int = NOW) -> ShareEntry:
    by_region = {one.region: one for one in entries}
    others = OtherRegions(regions=frozenset(by_region), seen=seen)
    return decide(by_region, bucket=BUCKET, own=own, others=others, now=now)


def test_a_share_grows_only_by_what_no_other_region_holds() -> None:
    eu = entry("eu", used=0.3, demand=10.0)
    us = entry("us", used=0.05, held=0.6)

    grown = decided(eu, us)

    assert (grown.used, grown.held) == pytest.approx((0.4, 0.4))


@pytest.mark.parametrize(("new", "lowered"), [(0.0, 0.9 + 0.1 / 3), (0.02, 0.95)])
def test_a_share_falls_a_little_only_for_a_region_that_has_none(new: float, lowered: float) -> None:
    eu = entry("eu", used=0.95, demand=500.0)

    changed = decided(eu, entry("us", used=0.05), entry("asia", used=new))

    assert changed.used == pytest.approx(lowered)


def test_a_share_that_keeps_falling_is_given_up_once_at_a_time() -> None:
    first = decided(entry("eu", used=0.8, demand=2.0), entry("us", used=0.2, demand=2.0))

    second = decided(replace(first, demand=0.1), entry("us", used=0.2, demand=2.0), now=NOW + 1)

    assert first.used == pytest.approx(0.5)
    assert first.lowered == NOW
    assert (second.used, second.lowered) == (first.used, first.lowered)


@pytest.mark.parametrize("linger", [0.0, 60.0])
@pytest.mark.parametrize(
    ("later_demand", "used"),
    [
        pytest.param(1.0, 0.5, id="as much is needed"),
        pytest.param(2.0, 0.65, id="a part is needed again"),
    ],
)
def test_a_region_gives_up_what_it_held_once_work_has_ended(
    linger: float, later_demand: float, used: float
) -> None:
    us = entry("us", used=0.1, demand=1.0)
    lowered = decided(replace(entry("eu", used=0.9, demand=1.0), linger=linger), us)
    ends = NOW + int((LEASE + linger) * SECOND)

    applied = decided(lowered, us)
    again = decided(replace(applied, demand=later_demand), us)
    before = decided(again, us, now=ends - 1)
    after = decided(before, us, now=ends)

    assert before.used == pytest.approx(used)
    assert before.held == 0.9
    assert after.held == after.used == before.used
