"""Builds the catalog of served models, with revisions and placements, from backends' states."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from backends.protocol import ModelInfo
from gateway.routing.member import Health, Member
from gateway.types import RegionName, ServedModel


class Variant(NamedTuple):
    """Holds the properties that determine a backend's results for a model.

    While backends are upgraded, some may run an older version of a model's algorithm.
    """

    revision: str
    profile: str
    algorithm_version: int


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a model and the endpoints that serve it, in tiers in the order of use."""

    model: ServedModel
    tiers: tuple[tuple[Member, ...], ...]
    has_variants: bool
    """Whether endpoints serve several variants. Their health then decides which variant is used."""

    def is_of(self, model: ServedModel) -> bool:
        """Return whether this placement still applies to `model`, which a request took earlier.

        If there are several variants, an equal model does not suffice: endpoints with a newer
        revision, which the placement lacks, may still serve the older one.
        """
        return self.model is model or (not self.has_variants and self.model == model)


def variant(info: ModelInfo) -> Variant:
    """Return the variant of `info`."""
    return Variant(info.revision, info.profile, info.algorithm_version)


def tiers(
    members: Iterable[Member], regions: Sequence[RegionName]
) -> tuple[tuple[Member, ...], ...]:
    """Return `members` grouped by region, in the order of `regions`; overflow pools come last."""
    place = {region: number for number, region in enumerate(regions)}

    def key(member: Member) -> tuple[bool, int]:
        return member.endpoint.overflow, place[member.endpoint.region]

    return tuple(tuple(group) for _, group in groupby(sorted(members, key=key), key=key))


def chosen_variant(name: str, members: Sequence[Member], regions: Sequence[RegionName]) -> Variant:
    """Return the variant that most ready backends of the first region serve.

    The next region breaks a tie. Drained endpoints count only if no other is ready. If none is
    ready, all endpoints count, so that a model stays known while its backends are away.
    """
    ready = [member for member in members if member.health is Health.READY]
    undrained = [member for member in ready if not member.drained]
    counts = Counter(
        (variant(member.models[name]), member.endpoint.region)
        for member in undrained or ready or members
    )

    def votes(candidate: Variant) -> tuple[list[int], Variant]:
        return [counts[candidate, region] for region in regions], candidate

    return max({found for found, _ in counts}, key=votes)


def place(name: str, members: Sequence[Member], regions: Sequence[RegionName]) -> Placement:
    """Return the placement of the model `name`, which all `members` serve in some variant."""
    wanted = chosen_variant(name, members, regions)
    serving = [member for member in members if variant(member.models[name]) == wanted]
    having = {member.endpoint.region for member in serving}
    model = ServedModel(
        info=serving[0].models[name],
        regions=tuple(region for region in regions if region in having),
    )
    return Placement(
        model=model,
        tiers=tiers(serving, regions),
        has_variants=len(serving) < len(members),
    )


def catalog(members: Sequence[Member], regions: Sequence[RegionName]) -> dict[str, Placement]:
    """Return the placement of every served model by name."""
    serving: dict[str, list[Member]] = {}
    for member in members:
        for name in member.models:
            serving.setdefault(name, []).append(member)
    return {name: place(name, serving[name], regions) for name in sorted(serving)}
