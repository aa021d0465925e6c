"""Adds up the usage and results of each revision of a model.

Usage comes from the ledger. Results come from the backends' counters.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from sluicegate.gateway.ledger.types import RevisionCost
from sluicegate.gateway.ledger.usage_fields import OUTCOMES
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.plan_changes import current_serving, served_by
from sluicegate.wire.plans import RevisionStatistics, Serving, bucket_bound
from sluicegate.wire.protocol import ModelInfo, ServingState

_MOST_LABELS = 50
_COMPARED = ("same", "moved", "changed")


class ShadowView(msgspec.Struct, frozen=True, kw_only=True):
    """Compares the results of a shadow revision with the results of a serving revision.

    `agreement` is the fraction of the compared items whose first label, choice or entities are
    equal.
    """

    items: dict[str, int]
    agreement: float | None
    largest_difference: float


class ArmAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a revision's results. Each backend counts since its own start.

    `outcomes` counts computed items. `latency` has percentiles of the seconds from the arrival of a
    call at a backend to its result. They are exact to 10 %. `labels` counts the first label of each
    item. `shadows` compares the results with the results of each shadow revision.
    """

    outcomes: dict[str, int]
    latency: dict[str, float]
    labels: dict[str, int]
    shadows: dict[str, ShadowView]


class ArmView(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one revision of a model since its weights were first published.

    While a single revision serves the model and there is no shadow, nothing is counted. The metric
    `sluicegate_items_total` always counts failed items by revision.
    """

    arm: str
    weight: int
    wanted_share: float
    share: float | None
    items: int
    hit: int
    collapsed: int
    computed: int
    failed: int
    rows: int
    tokens: int
    costs: dict[str, str]
    """The cost of the items in each currency, as a decimal number."""
    answers: ArmAnswers


class ModelArms(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic split of a model, and the usage and results of each revision.

    `planned` is true if operators chose the split, and false if the model's folder defines it.
    `backends` are the backends that serve the model with this split. `others` are backends that
    serve it differently. `away` maps each unreachable backend to the reason why it is unreachable.
    """

    model: str
    revision: str
    planned: bool
    serving: Serving
    arms: list[ArmView]
    backends: list[str]
    others: list[str]
    away: dict[str, str]


async def read_revisions(context: OperationContext, model: str) -> ModelArms:
    """Return the traffic split and the results of each revision of a model.

    Usage comes from the ledger, and results come from the backends' counters.

    Raises:
        NotFound: no backend has the model.
        UpstreamUnavailable: no backend can be reached.
    """
    found = await context.backends.states()
    served = served_by(found, model)
    infos = {
        str(endpoint.backend): info
        for endpoint, state in served.items()
        for info in state.models
        if info.name == model
    }
    revision = _most_common(infos)
    plan = await asyncio.to_thread(context.ledger.plans.plan, model)
    costs = await asyncio.to_thread(context.ledger.revision_costs, model, revision)
    same = [endpoint.backend for endpoint in served if _at(infos, endpoint.backend) == revision]
    serving = current_serving(
        model, (state for each, state in served.items() if each.backend in same)
    )
    return ModelArms(
        model=model,
        revision=revision,
        planned=plan.plan is not None,
        serving=serving,
        arms=views(serving, costs, _counted(model, served.values())),
        backends=[str(name) for name in same],
        others=[str(each.backend) for each in served if each.backend not in same],
        away=dict(found.away),
    )


def views(
    serving: Serving, costs: Iterable[RevisionCost], counted: Mapping[str, list[RevisionStatistics]]
) -> list[ArmView]:
    """Return a view of each revision that serves the model now or has served the model before."""
    weights = serving.revisions or {}
    by_revision: dict[str, list[RevisionCost]] = {number: [] for number in weights}
    for cost in costs:
        by_revision.setdefault(cost.arm, []).append(cost)
    items = {number: sum(map(_items, lines)) for number, lines in by_revision.items()}
    return [
        ArmView(
            arm=number,
            weight=weights.get(number, 0),
            wanted_share=weights.get(number, 0) / max(1, sum(weights.values())),
            share=items[number] / sum(items.values()) if any(items.values()) else None,
            items=items[number],
            **{name: sum(getattr(line, name) for line in lines) for name in OUTCOMES},
            costs={line.currency: line.cost for line in lines},
            answers=_answers(counted.get(number, [])),
        )
        for number, lines in sorted(by_revision.items(), key=lambda pair: (len(pair[0]), pair[0]))
    ]


def percentile(durations: Mapping[int, int], share: float) -> float:
    """Return the percentile `share` (a fraction such as 0.95) of durations.

    The result is in seconds and exact to 10 %.

    `durations` counts the durations in each bucket of a logarithmic histogram (see `bucket_bound`).
    """
    rest = share * sum(durations.values())
    for bucket in sorted(durations):
        rest -= durations[bucket]
        if rest <= 0:
            # The middle of the bucket on the logarithmic scale.
            return bucket_bound(bucket) * math.sqrt(bucket_bound(0) / bucket_bound(1))
    return 0.0


def _answers(counted: Iterable[RevisionStatistics]) -> ArmAnswers:
    outcomes, durations, labels = Counter[str](), Counter[int](), Counter[str]()
    shadows: dict[str, Counter[str]] = {}
    largest: dict[str, float] = {}
    for each in counted:
        outcomes.update(each.outcomes)
        durations.update(each.durations)
        labels.update(each.labels)
        for shadow, compared in each.shadows.items():
            shadows.setdefault(shadow, Counter()).update(compared)
            largest[shadow] = max(largest.get(shadow, 0.0), each.largest.get(shadow, 0.0))
    return ArmAnswers(
        outcomes=dict(outcomes),
        latency={
            f"p{round(share * 100)}": percentile(durations, share)
            for share in (0.5, 0.95, 0.99)
            if durations
        },
        labels=dict(labels.most_common(_MOST_LABELS)),
        shadows={
            shadow: ShadowView(
                items=dict(compared),
                agreement=_agreement(compared),
                largest_difference=largest[shadow],
            )
            for shadow, compared in shadows.items()
        },
    )


def _agreement(compared: Counter[str]) -> float | None:
    total = sum(compared[outcome] for outcome in _COMPARED)
    return (total - compared["changed"]) / total if total else None


def _items(line: RevisionCost) -> int:
    return line.hit + line.collapsed + line.computed + line.failed


def _counted(model: str, states: Iterable[ServingState]) -> dict[str, list[RevisionStatistics]]:
    found: dict[str, list[RevisionStatistics]] = {}
    for state in states:
        for each in state.arms:
            if each.model == model:
                found.setdefault(each.arm, []).append(each)
    return found


def _most_common(infos: Mapping[str, ModelInfo]) -> str:
    counts = Counter(info.revision for info in infos.values())
    return counts.most_common(1)[0][0] if counts else ""


def _at(infos: Mapping[str, ModelInfo], backend: str) -> str | None:
    return infos[backend].revision if backend in infos else None
