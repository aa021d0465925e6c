"""Defines which models and revisions are served, and what is counted of each: part of the wire."""

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec

# `POST` an `Assignment` there; the answer is the state, which names the one that is followed.
ASSIGNMENT_PATH = "/v1/models/assignment"
# A pattern that no name matches: it stands for no model.
NO_MODEL = "-"

# The number of a revision's folder, and its part of the items.
Revision = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+$")]
Weight = Annotated[int, msgspec.Meta(ge=1)]
# The number of a revision in an answer, empty where none is named.
ArmName = Annotated[str, msgspec.Meta(max_length=20)]


class Shadow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes the revision that `share` per cent of the items are mirrored to.

    Answers are the same where no number of them is further apart than `tolerance`.
    """

    revision: Revision
    share: Annotated[float, msgspec.Meta(gt=0, le=100)] = 100.0
    tolerance: Annotated[float, msgspec.Meta(ge=0)] = 0.01


class Serving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the revisions that answer, with their shares, and others that are kept warm.

    Revisions that share, those in `preload` and the `shadow` are also models of their own,
    `name@revision`.
    """

    revisions: Annotated[dict[Revision, Weight], msgspec.Meta(min_length=1)] | None = None
    preload: list[Revision] = []
    shadow: Shadow | None = None


class ServingPlans(msgspec.Struct, frozen=True, kw_only=True):
    """Holds how models are served, by name, in place of what their folders say.

    A backend follows the highest `version` that it was given. Models without a plan are served as
    their folders say.
    """

    version: int = 0
    plans: dict[str, Serving] = {}


class PlanTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Asks whether `model` could be served by `plan`; `None`: as its folder says."""

    model: str
    plan: Serving | None


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Says which models a backend serves: those that match `models`, and `until` others do, some.

    A backend follows the highest `version` that it was given; of one version `until` only shrinks.
    Without `models` it serves what its own setting says.
    """

    version: int = 0
    models: tuple[str, ...] = ()
    until: tuple[str, ...] = ()

    def replaces(self, other: "Assignment") -> bool:
        """Return whether a backend that follows `other` is to follow this one."""
        if self.version != other.version:
            return self.version > other.version
        return self.models == other.models and set(self.until) < set(other.until)


def is_assigned(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a model, or a revision of one (`name@2`), matches one of `patterns`."""
    base = name.partition("@")[0]
    return any(fnmatchcase(base, pattern) for pattern in patterns)


class ArmStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts what one revision of a model did since the backend started.

    `outcomes` are of items, `durations` counts by `duration_bucket`, and `seconds` is their sum;
    `labels` counts the first label of answers. `shadows` counts mirrored items by the shadow's
    revision and by how the answers compare; `largest` is how far numbers of agreeing answers were
    apart at most.
    """

    model: str
    arm: str
    outcomes: dict[str, int] = {}
    durations: dict[int, int] = {}
    seconds: float = 0.0
    labels: dict[str, int] = {}
    shadows: dict[str, dict[str, int]] = {}
    largest: dict[str, float] = {}


# Durations are counted in buckets whose bounds grow by a quarter of a doubling, from 0.1 ms on.
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
