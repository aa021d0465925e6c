"""Puts together which revisions of each model are served where, and how its items are shared."""

from collections import Counter

import msgspec

from backends.plans import Serving, ServingPlans
from gateway.admin.plan_changes import base_name
from gateway.console.fleet import FleetView
from gateway.console.traffic import Flow, Traffic


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model as a line of the list; `plan` is `None` where its folder says how it is served."""

    name: str
    revisions: dict[str, int]
    """Backends by the revision that they serve, the most common one first."""
    numbers: list[str]
    """Revisions that backends serve by number."""
    problems: dict[str, int]
    """Backends by what is wrong with the model there."""
    plan: Serving | None
    flow: Flow

    @property
    def split(self) -> dict[str, float]:
        """The part of the items by revision, where operators said so."""
        weights = (self.plan.revisions if self.plan else None) or {}
        total = sum(weights.values())
        return {number: weight / total for number, weight in weights.items()}


def list_models(fleet: FleetView, plans: ServingPlans, traffic: Traffic) -> list[ModelRow]:
    """Return all models that backends serve or fail to, by name."""
    served: dict[str, Counter[str]] = {}
    numbers: dict[str, set[str]] = {}
    problems: dict[str, Counter[str]] = {}
    for backend in fleet.backends:
        for name, revision in backend.models.items():
            base, _, number = name.partition("@")
            if number:
                numbers.setdefault(base, set()).add(number)
            else:
                served.setdefault(base, Counter())[revision] += 1
        for name, text in backend.problems.items():
            problems.setdefault(base_name(name), Counter())[text] += 1
    flows = {flow.name: flow for flow in traffic.models}
    return [
        ModelRow(
            name=name,
            revisions=dict(served.get(name, Counter()).most_common()),
            numbers=sorted(numbers.get(name, ()), key=int),
            problems=dict(problems.get(name, Counter()).most_common()),
            plan=plans.plans.get(name),
            flow=flows.get(name) or Flow(name=name),
        )
        for name in sorted({*served, *problems})
    ]
