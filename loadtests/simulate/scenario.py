"""Says what is simulated: sizes, speeds, load, and settings of routing and scaling."""

from random import Random

import msgspec

from backends.executors.cost import CostModel
from gateway.config.document import RoutingConfig
from loadtests.simulate.day import Day
from loadtests.simulate.scaling import ScalingRule

# A classifier of six layers on one core, as measured.
_COST = CostModel(base=0.8e-3, token=0.11e-3, padded=0.04e-3, square=50e-9)
SHIFTS = {"eu": 0.0, "us": -6.0, "ap": 7.0}
"""Hours by which each region's day is ahead."""
# Lengths of texts in tokens are lognormal.
_MEDIAN, _SPREAD, _LONGEST = 200.0, 0.4, 512


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated.

    `busy` is how many backends the mean of the day without the spike keeps busy. A request stands
    for `grain` of them: it takes so many times as long, and comes so many times as rarely.
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
        """Return the mean seconds of an item that runs alone."""
        chooser, cost = Random(0), self.cost()
        count = 2000
        return sum(cost.base + cost.alone(draw_length(chooser)) for _ in range(count)) / count


def draw_length(chooser: Random) -> int:
    """Return the tokens of a text."""
    return max(8, min(_LONGEST, round(_MEDIAN * chooser.lognormvariate(0.0, _SPREAD))))
