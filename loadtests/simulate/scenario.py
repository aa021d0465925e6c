"""Defines a scenario: sizes, speeds, the load of a day, and settings of routing and scaling."""

import itertools
from collections.abc import Sequence
from random import Random

import msgspec

from backends.executors.cost import CostModel
from gateway.config.document import RoutingConfig
from loadtests.simulate.world import ScalingRule

DAY = 86_400.0
# Taxi rides that began in New York in each half hour of Tuesday, 2014-07-01: requests of
# independent people. From the city's Taxi and Limousine Commission, as in `nyc_taxi` of the
# Numenta Anomaly Benchmark.
# fmt: off
RIDES = (
    10844, 8127, 6210, 4656, 3820, 2873, 2369, 2064, 2221, 2158, 2515, 4364,
    6526, 11039, 13857, 15865, 17920, 20346, 19539, 20107, 18984, 17720, 17249, 18463,
    18908, 18886, 18178, 19459, 19546, 20591, 19380, 18544, 16228, 15013, 17203, 19525,
    22966, 27598, 26827, 24904, 22875, 20394, 23401, 24439, 23318, 21733, 20104, 16111,
)
# fmt: on
_STEP = DAY / len(RIDES)
_MEAN = sum(RIDES) / len(RIDES)


class Spike(msgspec.Struct, frozen=True, kw_only=True):
    """The load rises to `times` its value within `ramp` seconds, stays for `lasts` s, and falls."""

    at: float = 14 * 3600.0
    times: float = 10.0
    ramp: float = 30.0
    lasts: float = 120.0
    tail: float = 60.0
    """Seconds after the spike that are simulated in full."""

    def factor(self, now: float) -> float:
        """Return the factor of the load at a time."""
        since = now - self.at
        until = self.at + 2 * self.ramp + self.lasts - now
        share = max(0.0, min(1.0, since / self.ramp, until / self.ramp))
        return 1.0 + (self.times - 1.0) * share


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """From the time `at`, all backends of a region answer nothing for `lasts` seconds."""

    region: str = "eu"
    at: float = 18 * 3600.0
    lasts: float = 3600.0


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the day that is simulated from `start` for `lasts` seconds.

    Each second stands for `weight` seconds of the day.
    """

    name: str
    start: float
    lasts: float
    weight: float = 1.0


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """What happens in 24 hours, and which parts are simulated."""

    spike: Spike = Spike()
    outage: Outage = Outage()
    slot: float = 3600.0
    sample: float = 6.0
    """In quiet times, only so many seconds of each slot are simulated and counted."""
    away: float = 120.0
    """Seconds in the middle of an outage that are simulated and counted."""
    warm_up: float = 16.0
    """Seconds before each part that are simulated but not counted.

    After this time, earlier requests have ended, and the slow start of new backends is over.
    """
    cool_down: float = 10.0
    """Seconds after each part in which the part's last requests end."""
    after: float = 120.0
    """Seconds after the begin of an outage, and after its end, that are simulated in full."""

    def load(self, now: float, shift: float) -> float:
        """Return the load, relative to the mean load of a day without a spike.

        `shift` is by how many hours the region's local time is ahead of `now`.
        """
        place = ((now + shift * 3600.0) % DAY) / _STEP
        left = int(place)
        before, after = RIDES[left % len(RIDES)], RIDES[(left + 1) % len(RIDES)]
        curve = (before + (after - before) * (place - left)) / _MEAN
        return curve * self.spike.factor(now)

    def segments(self) -> list[Segment]:
        """Return the segments in order: changes are simulated in full, quiet times in samples."""
        spike, outage = self.spike, self.outage
        end = outage.at + outage.lasts
        full = [
            Segment(name="spike", start=spike.at, lasts=2 * spike.ramp + spike.lasts + spike.tail),
            Segment(name="region lost", start=outage.at - 5.0, lasts=self.after),
            Segment(name="region back", start=end - 5.0, lasts=self.after),
        ]
        return sorted([*full, *self._samples(full)], key=lambda segment: segment.start)

    def _samples(self, full: Sequence[Segment]) -> list[Segment]:
        found: list[Segment] = []
        edges = sorted([0.0, DAY, *(e for one in full for e in (one.start, one.start + one.lasts))])
        for begin, end in itertools.pairwise(edges):
            if any(one.start == begin for one in full):
                continue
            count = max(1, round((end - begin) / self.slot))
            length = (end - begin) / count
            for number in range(count):
                # The middle of a slot stands for the whole slot.
                start = begin + (number + 0.5) * length
                name = self.phase(start)
                sample = self.sample if name == "quiet" else self.away
                found.append(Segment(name=name, start=start, lasts=sample, weight=length / sample))
        return found

    def phase(self, now: float) -> str:
        """Return the name of a quiet time's phase."""
        return "region away" if self.is_lost(now) else "quiet"

    def is_lost(self, now: float) -> bool:
        """Return whether the region is lost at a time."""
        return self.outage.at <= now < self.outage.at + self.outage.lasts


# A classifier of six layers on one core, as measured.
_COST = CostModel(base=0.8e-3, token=0.11e-3, padded=0.04e-3, square=50e-9)
SHIFTS = {"eu": 0.0, "us": -6.0, "ap": 7.0}
"""By how many hours the local time of each region is ahead of the simulated time."""
# The lengths of texts in tokens have a lognormal distribution.
_MEDIAN, _SPREAD, _LONGEST = 200.0, 0.4, 512


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated.

    `busy` is how many backends the average load without the spike keeps busy. To save time, one
    simulated request represents `grain` requests: it takes `grain` times as long, and requests are
    `grain` times as rare.
    """

    backends: int = 2000
    busy: float = 115.0
    grain: float = 40.0
    deadline: float = 10.0
    day: Day = Day()
    routing: RoutingConfig = RoutingConfig()
    scaling: ScalingRule = ScalingRule()
    oracle_busy: float = 0.85
    seed: int = 1

    def cost(self) -> CostModel:
        """Return the cost model of a backend."""
        times = self.grain
        return CostModel(
            base=_COST.base * times,
            token=_COST.token * times,
            padded=_COST.padded * times,
            square=_COST.square * times,
        )

    def item_seconds(self) -> float:
        """Return the mean seconds that an item takes alone."""
        chooser, cost = Random(0), self.cost()
        count = 2000
        return sum(cost.base + cost.alone(draw_length(chooser)) for _ in range(count)) / count


def draw_length(chooser: Random) -> int:
    """Return the number of tokens of a random text."""
    return max(8, min(_LONGEST, round(_MEDIAN * chooser.lognormvariate(0.0, _SPREAD))))
