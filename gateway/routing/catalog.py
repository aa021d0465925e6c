"""Builds the catalog of served models from the states of endpoints.

The catalog says which revision of a model is used, and which endpoints serve it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from sluicegate.gateway.routing.endpoint_state import EndpointState, Health
from sluicegate.gateway.types import RegionName, ServedModel
from sluicegate.wire.protocol import Variant


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a model and the endpoints that serve it.

    The endpoints are grouped in tiers. The first tier is preferred to the others.
    """

    model: ServedModel
    tiers: tuple[tuple[EndpointState, ...], ...]
    has_variants: bool
    """Whether endpoints serve several variants of the model. The health of these endpoints then
    decides which variant is used."""

    def is_of(self, model: ServedModel) -> bool:
        """Return whether this placement still applies to a request that began with `model`.

        If endpoints serve only one variant of the model, any equal `model` is enough. If they serve
        several variants, `model` must be the same object as the placement's model, because
        endpoints outside of the placement may also serve the revision of `model`.
        """
        return self.model is model or (not self.has_variants and self.model == model)


def tiers(
    endpoints: Iterable[EndpointState], regions: Sequence[RegionName]
) -> tuple[tuple[EndpointState, ...], ...]:
    """Return `endpoints` grouped by region, in the order of `regions`. Overflow pools come last."""
    place = {region: number for number, region in enumerate(regions)}

    def key(endpoint: EndpointState) -> tuple[bool, int]:
        return endpoint.config.overflow, place[endpoint.config.region]

    return tuple(tuple(group) for _, group in groupby(sorted(endpoints, key=key), key=key))


def chosen_variant(
    name: str, endpoints: Sequence[EndpointState], regions: Sequence[RegionName]
) -> Variant:
    """Return the variant that most ready backends in the first region serve.

    If two variants have equally many of these backends, the next region decides. Drained endpoints
    count only if no other endpoint is ready. If no endpoint is ready, all endpoints count, so that
    a model stays known while its backends are down.
    """
    ready = [endpoint for endpoint in endpoints if endpoint.health is Health.READY]
    undrained = [endpoint for endpoint in ready if not endpoint.drained]
    counts = Counter(
        (endpoint.models[name].variant, endpoint.config.region)
        for endpoint in undrained or ready or endpoints
    )

    def votes(candidate: Variant) -> tuple[list[int], Variant]:
        return [counts[candidate, region] for region in regions], candidate

    return max({found for found, _ in counts}, key=votes)


def place(
    name: str, endpoints: Sequence[EndpointState], regions: Sequence[RegionName]
) -> Placement:
    """Return the chosen variant of the model `name`, and the endpoints that serve this variant.

    Each of `endpoints` must serve some variant of the model.
    """
    wanted = chosen_variant(name, endpoints, regions)
    serving = [endpoint for endpoint in endpoints if endpoint.models[name].variant == wanted]
    having = {endpoint.config.region for endpoint in serving}
    model = ServedModel(
        info=serving[0].models[name],
        regions=tuple(region for region in regions if region in having),
    )
    return Placement(
        model=model,
        tiers=tiers(serving, regions),
        has_variants=len(serving) < len(endpoints),
    )


def catalog(
    endpoints: Sequence[EndpointState], regions: Sequence[RegionName]
) -> dict[str, Placement]:
    """Return the placement of every served model by name."""
    serving: dict[str, list[EndpointState]] = {}
    for endpoint in endpoints:
        for name in endpoint.models:
            serving.setdefault(name, []).append(endpoint)
    return {name: place(name, serving[name], regions) for name in sorted(serving)}
