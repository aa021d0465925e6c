"""Computes how many replicas KEDA and the horizontal pod autoscaler give a pool."""

import math
from collections.abc import Mapping

import msgspec

from testing.manifests import Manifest

_TOLERANCE = 0.1
"""The autoscaler's tolerance: it keeps the number of replicas while demand differs by at most this
share."""


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger of a ScaledObject. Its metric is an average over the replicas."""

    name: str
    query: str
    threshold: float
    activation: float

    def replicas(self, value: float, current: int) -> int:
        """Return how many replicas a pool needs if the trigger's query returns `value`."""
        if current and abs(value / (self.threshold * current) - 1.0) <= _TOLERANCE:
            return current
        return math.ceil(value / self.threshold)


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds and triggers of a ScaledObject."""

    target: str
    least: int
    most: int
    triggers: tuple[Trigger, ...]

    def replicas(self, values: Mapping[str, float], current: int) -> int:
        """Return the number of replicas that KEDA wants for these results of the triggers.

        Limits on how fast the number may change are not applied.

        A pool may have no replicas only if its minimum is 0 and no trigger is above its activation
        threshold.
        """
        is_active = any(values[each.name] > each.activation for each in self.triggers)
        if self.least == 0 and not is_active:
            return 0
        wanted = max(each.replicas(values[each.name], current) for each in self.triggers)
        return min(self.most, max(self.least, 1, wanted))


def read_scaling(scaled_object: Manifest) -> Scaling:
    """Return the bounds and triggers of a ScaledObject."""
    spec = scaled_object["spec"]
    return Scaling(
        target=spec["scaleTargetRef"]["name"],
        least=spec["minReplicaCount"],
        most=spec["maxReplicaCount"],
        triggers=tuple(
            Trigger(
                name=each["name"],
                query=each["metadata"]["query"],
                threshold=float(each["metadata"]["threshold"]),
                activation=float(each["metadata"].get("activationThreshold", "0")),
            )
            for each in spec["triggers"]
        ),
    )
