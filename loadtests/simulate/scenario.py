"""Describes the simulated day: load, events, simulated parts, and the speed of backends."""

from random import Random
from typing import NamedTuple

import msgspec
import numpy as np

from sluicegate.backends.executors.cost import CostModel

DAY = 86_400.0
# Taxi rides that began in New York in each half hour of Tuesday, 2014-07-01: requests of
# independent people. From the city's Taxi and Limousine Commission, as in `nyc_taxi` of the
# Numenta Anomaly Benchmark.
# fmt: off
_RIDES = (
    10844, 8127, 6210, 4656, 3820, 2873, 2369, 2064, 2221, 2158, 2515, 4364,
    6526, 11039, 13857, 15865, 17920, 20346, 19539, 20107, 18984, 17720, 17249, 18463,
    18908, 18886, 18178, 19459, 19546, 20591, 19380, 18544, 16228, 15013, 17203, 19525,
    22966, 27598, 26827, 24904, 22875, 20394, 23401, 24439, 23318, 21733, 20104, 16111,
)
# fmt: on
_MEAN = sum(_RIDES) / len(_RIDES)
_RIDE_TIMES = np.linspace(0.0, DAY, len(_RIDES), endpoint=False)
SHIFTS = {"eu": 0.0, "us": -6.0, "ap": 7.0}
"""By how many hours the local time of each region is ahead of the simulated time."""
LOST_REGION = "eu"
"""The region whose backends answer nothing for an hour."""
_LOST_AT, _BACK_AT = 18 * 3600.0, 19 * 3600.0
# At 14:00, the load rises tenfold within 30 s, stays for 120 s, and falls within 30 s.
_SPIKE = 14 * 3600.0
_SPIKE_TIMES, _SPIKE_FACTORS = (_SPIKE, _SPIKE + 30, _SPIKE + 150, _SPIKE + 180), (1, 10, 10, 1)
WARM_UP = 16.0
"""Seconds before each segment that are simulated but not counted.

After this time, earlier requests have ended, and the slow start of new backends is over.
"""
COOL_DOWN = 10.0
"""Seconds after each segment in which the segment's last requests end."""


class Segment(NamedTuple):
    """A part of the day that is simulated from `start` for `lasts` seconds.

    Each second stands for `weight` seconds of the day.
    """

    name: str
    start: float
    lasts: float
    weight: float = 1.0


def _samples(name: str, begin: float, end: float, *, slots: int, lasts: float) -> list[Segment]:
    """Divide a time into slots; return segments in their middles that stand for whole slots."""
    slot = (end - begin) / slots
    return [
        Segment(name, begin + (number + 0.5) * slot, lasts, weight=slot / lasts)
        for number in range(slots)
    ]


SEGMENTS = (
    *_samples("quiet", 0.0, _SPIKE, slots=14, lasts=6.0),
    Segment("spike", _SPIKE, 240.0),
    *_samples("quiet", _SPIKE + 240.0, _LOST_AT - 5.0, slots=4, lasts=6.0),
    Segment("region lost", _LOST_AT - 5.0, 120.0),
    *_samples("region away", _LOST_AT + 115.0, _BACK_AT - 5.0, slots=1, lasts=120.0),
    Segment("region back", _BACK_AT - 5.0, 120.0),
    *_samples("quiet", _BACK_AT + 115.0, DAY, slots=5, lasts=6.0),
)
"""Changes are simulated in full, quiet times in samples."""


def is_lost(now: float) -> bool:
    """Return whether the lost region is away at a time of the day."""
    return _LOST_AT <= now < _BACK_AT


# A classifier of six layers on one core, as measured.
_COST = CostModel(base=0.8e-3, token=0.11e-3, padded=0.04e-3, square=50e-9)
_BUSY = 115 / 2000


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the simulation: the most backends, and the grain.

    To save time, one simulated request represents `grain` requests: it takes `grain` times as long,
    and requests are `grain` times as rare.
    """

    backends: int = 2000
    grain: float = 40.0

    def busy(self, region: str, now: float) -> float:
        """Return how many backends the callers of a region keep busy at a time of the day."""
        local = now + SHIFTS[region] * 3600.0
        curve = np.interp(local, _RIDE_TIMES, _RIDES, period=DAY) / _MEAN
        spike = np.interp(now, _SPIKE_TIMES, _SPIKE_FACTORS)
        return float(_BUSY * self.backends / len(SHIFTS) * curve * spike)

    def cost(self) -> CostModel:
        """Return the cost model of a backend."""
        return CostModel(
            base=_COST.base * self.grain,
            token=_COST.token * self.grain,
            padded=_COST.padded * self.grain,
            square=_COST.square * self.grain,
        )

    def item_seconds(self) -> float:
        """Return the mean seconds that an item takes alone."""
        chooser, cost = Random(0), self.cost()
        count = 2000
        return sum(cost.base + cost.alone(draw_length(chooser)) for _ in range(count)) / count


def draw_length(chooser: Random) -> int:
    """Return the number of tokens of a random text; the lengths have a lognormal distribution."""
    return max(8, min(512, round(200.0 * chooser.lognormvariate(0.0, 0.4))))
