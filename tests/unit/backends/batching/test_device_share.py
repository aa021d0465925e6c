"""The device's time between models."""

import threading

from sluicegate.backends.batching.device import Device, DeviceShare
from testing.waiting import wait_until
from tests.support.clock import Clock


class Models:
    """Models that always have work; a simulated device of one slot runs them in turn."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.device = Device(slots=1, clock=self.clock)
        self.one, self.other = self.device.share(), self.device.share()

    def run(self, seconds: float, *, one: float, other: float) -> float:
        """Let work arrive at these rates; return the share of time the first model got."""
        spent = {self.one: 0.0, self.other: 0.0}
        for share in spent:
            share.waiting = 1
        for _ in range(round(seconds / 0.01)):
            self.one.arrived(one * 0.01)
            self.other.arrived(other * 0.01)
            share = self.device._next()
            self.device.enter(share)
            spent[share] += 0.01
            self.clock.advance(0.01)
            self.device.leave(share, 0.01)
        return spent[self.one] / sum(spent.values())


def test_time_follows_traffic_ten_to_one() -> None:
    models = Models()
    models.run(10.0, one=1.18, other=0.118)

    share = models.run(20.0, one=1.18, other=0.118)

    assert 9.0 <= share / (1 - share) <= 11.0


def test_shares_follow_within_ten_seconds_when_traffic_swaps() -> None:
    models = Models()
    models.run(20.0, one=1.18, other=0.118)
    models.run(8.0, one=0.118, other=1.18)

    share = models.run(10.0, one=0.118, other=1.18)

    assert 9.0 <= (1 - share) / share <= 11.0


def test_a_model_with_hardly_any_traffic_is_not_starved() -> None:
    models = Models()

    share = models.run(30.0, one=2.0, other=0.0001)

    assert 0.015 <= 1 - share <= 0.03


def test_a_model_alone_waits_for_nobody() -> None:
    clock = Clock()
    device = Device(slots=2, clock=clock)
    alone = device.share()
    device.share()

    with alone.slot() as first, alone.slot() as second:
        first.seconds = second.seconds = 1.0
        clock.advance(1.0)

    assert alone.running == 0


def test_a_slot_given_back_goes_to_the_model_that_is_behind() -> None:
    device = Device(slots=1, clock=Clock())
    ahead, behind = device.share(), device.share()
    ahead.clock = 5.0
    order: list[DeviceShare] = []

    def use(share: DeviceShare) -> None:
        with share.slot():
            order.append(share)

    with device.share().slot():
        threads = [threading.Thread(target=use, args=(share,)) for share in (ahead, behind)]
        for thread in threads:
            thread.start()
        wait_until(lambda: ahead.waiting == behind.waiting == 1, within=60, what="both wait")
    for thread in threads:
        thread.join()

    assert order == [behind, ahead]


def test_the_busy_share_is_of_all_slots() -> None:
    clock = Clock()
    device = Device(slots=2, clock=clock)

    with device.share().slot():
        clock.advance(100.0)
        assert round(device.busy_share(), 3) == 0.5


def test_a_model_with_more_to_run_keeps_its_turn_for_a_moment() -> None:
    clock = Clock()
    device = Device(slots=1, clock=clock)
    behind, other = device.share(), device.share()
    other.clock = 5.0
    with behind.slot() as use:
        other.waiting = 1
        use.seconds, use.more = 1.0, True

    at_once = device._next()
    clock.advance(0.1)

    assert at_once is behind
    assert device._next() is other


def test_a_model_that_comes_back_at_once_is_still_behind() -> None:
    device = Device(slots=1, clock=Clock())
    behind, other = device.share(), device.share()
    other.clock = 5.0
    with other.slot():
        pass
    with behind.slot() as use:
        use.more = True
    behind.clock = 1.0

    with behind.slot():
        pass

    assert behind.clock == 1.0
