"""The next share of a region leaves the others what they may still spend."""

import pytest

from gateway.regional_limits.policy import OtherRegions, ShareEntry, decide

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
