"""Lists the models: which revisions are served where, how traffic is split, what is not served."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from backends.plans import Serving, ServingPlans
from gateway.admin.plan_changes import base_name
from gateway.console.fleet import FleetView
from gateway.console.traffic import Flow, Traffic

_NAMED: Final = 3


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model as a line of the list; `plan` is `None` where its folder says how it is served."""

    name: str
    revisions: dict[str, int]
    """The backends in use, by the revision that they serve; the most common one first."""
    unserved: str = ""
    """Why no backend in use serves the model; empty if one does."""
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
    """Return all models that the document names or that backends have, by name."""
    served: dict[str, Counter[str]] = {}
    numbers: dict[str, set[str]] = {}
    problems: dict[str, Counter[str]] = {}
    unused: dict[str, list[str]] = {}
    for backend in fleet.backends:
        for name, revision in backend.models.items():
            base, _, number = name.partition("@")
            if number:
                numbers.setdefault(base, set()).add(number)
            elif backend.is_usable:
                served.setdefault(base, Counter())[revision] += 1
            else:
                unused.setdefault(base, []).append(f"{backend.id} is {backend.state}")
        for name, text in backend.problems.items():
            problems.setdefault(base_name(name), Counter())[text] += 1
    configured = fleet.configured if fleet.workers else ()  # else nobody knows what is served
    flows = {flow.name: flow for flow in traffic.models}
    return [
        ModelRow(
            name=name,
            revisions=dict(served.get(name, Counter()).most_common()),
            unserved=""
            if name in served
            else _why_unserved(unused.get(name, ()), problems.get(name)),
            numbers=sorted(numbers.get(name, ()), key=int),
            problems=dict(problems.get(name, Counter()).most_common()),
            plan=plans.plans.get(name),
            flow=flows.get(name) or Flow(name=name),
        )
        for name in sorted({*served, *unused, *problems, *configured})
    ]


def _why_unserved(unused: Sequence[str], problems: Counter[str] | None) -> str:
    """Return why no backend in use serves a model."""
    if unused:
        more = f", and {len(unused) - _NAMED} more" if len(unused) > _NAMED else ""
        return ", ".join(unused[:_NAMED]) + more
    if problems:
        return "every backend that has it fails to load it"
    return "no backend has it in its repository"
