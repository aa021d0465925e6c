"""Two worker processes, four tenants who ask for three times what they may have.

`make bench NAME=limits` is the long form, with more of both.
"""

from collections.abc import Iterator

import pytest

from loadtests import limits
from loadtests.gateway import Gateway
from testing.valkey import Valkey

Fleet = tuple[Gateway, Valkey]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """A gateway and its state Redis, which has a minute to answer: this machine may be busy."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(limits, "WORKERS", 2)
        monkeypatch.setattr(limits, "TENANTS", 4)
        with limits.running_fleet(state_timeout=60.0) as running:
            yield running


def test_no_window_of_any_tenant_has_more_than_its_limit_and_each_gets_what_is_its(
    fleet: Fleet,
) -> None:
    kept = limits.run_on(*fleet, duration=6.0, away=0.0)

    # Nothing, unless Redis was late: then what decision 0006 lets each worker be ahead.
    assert kept.over <= kept.ahead
    assert kept.share >= 0.5
    assert kept.other == 0


def test_without_redis_no_more_is_added_than_the_local_share(fleet: Fleet) -> None:
    """A killed Redis refuses connections at once."""
    kept = limits.run_on(*fleet, duration=9.0, away=3.0)

    assert kept.over <= kept.allowed
    assert kept.other == 0
