"""Defines messages between gateway and backend about the served models and revisions."""

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec

# `POST` an `Assignment` here. The response is the backend's state, with its latest assignment.
ASSIGNMENT_PATH = "/v1/models/assignment"
# A pattern that matches no name, for a backend without models.
NO_MODEL = "-"

# The number of a revision, which is the name of its folder, and its weight in a traffic split.
Revision = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+$")]
Weight = Annotated[int, msgspec.Meta(ge=1)]
# The number of the revision that answered, or "" without a traffic split.
RevisionNumber = Annotated[str, msgspec.Meta(max_length=20)]


class Shadow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes a shadow revision, which gets copies of `share` per cent of the items.

    The shadow's result for an item counts as equal to the answer if no number differs by more than
    `tolerance`.
    """

    revision: Revision
    share: Annotated[float, msgspec.Meta(gt=0, le=100)] = 100.0
    tolerance: Annotated[float, msgspec.Meta(ge=0)] = 0.01


class Serving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the traffic split of a model, its preloaded revisions and its shadow revision.

    Each of these revisions can also be called under the model name `name@revision`.
    """

    revisions: Annotated[dict[Revision, Weight], msgspec.Meta(min_length=1)] | None = None
    preload: list[Revision] = []
    shadow: Shadow | None = None


class ServingPlans(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the operators' plans; keys are the names of models.

    The plan of a model overrides the model's `serving.yaml`. A backend uses the highest `version`
    that it has received.
    """

    version: int = 0
    plans: dict[str, Serving] = {}


class PlanTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Asks whether `model` could be served with `plan`, or without a plan (`None`)."""

    model: str
    plan: Serving | None


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Tells a backend which models to serve.

    `models` has patterns of model names. If it is empty, the backend's own setting applies. `until`
    has models that move to other backends. This backend serves them until the other backends serve
    them.

    A backend uses the highest `version` that it has received. Two assignments of one version differ
    only in `until`; the assignment with fewer models in `until` is newer.
    """

    version: int = 0
    models: tuple[str, ...] = ()
    until: tuple[str, ...] = ()

    def replaces(self, other: "Assignment") -> bool:
        """Return whether this assignment is newer than `other`."""
        if self.version != other.version:
            return self.version > other.version
        return self.models == other.models and set(self.until) < set(other.until)


def is_assigned(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the name of a model or of a revision (`name@2`) matches one of `patterns`."""
    base = name.partition("@")[0]
    return any(fnmatchcase(base, pattern) for pattern in patterns)


class RevisionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the items of one revision of a model since the backend started.

    - `arm` is the number of the revision.
    - `outcomes` counts items by outcome, and `labels` counts results by their first label.
    - `durations` counts items by `duration_bucket`; `seconds` is the sum of durations.
    - `shadows` counts mirrored items, by shadow revision and by the result of the comparison.
    - `largest` holds, for each shadow revision, the largest difference between numbers of
      otherwise equal results.
    """

    model: str
    arm: str
    outcomes: dict[str, int] = {}
    durations: dict[int, int] = {}
    seconds: float = 0.0
    labels: dict[str, int] = {}
    shadows: dict[str, dict[str, int]] = {}
    largest: dict[str, float] = {}


# The first bound of duration buckets is 0.1 ms. Each further bound is 2^(1/4) times the previous
# one.
_SHORTEST = 0.0001
_PER_DOUBLING = 4


def duration_bucket(seconds: float) -> int:
    """Return the bucket of a duration."""
    if seconds <= _SHORTEST:
        return 0
    return math.ceil(math.log2(seconds / _SHORTEST) * _PER_DOUBLING)


def bucket_bound(bucket: int) -> float:
    """Return the longest duration of a bucket, in seconds."""
    return float(_SHORTEST * 2.0 ** (bucket / _PER_DOUBLING))
