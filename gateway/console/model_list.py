"""Lists all models with their revisions, traffic split and problems."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from sluicegate.gateway.console.fleet import FleetView
from sluicegate.gateway.console.traffic import ModelTraffic, Traffic
from sluicegate.gateway.operations.plan_changes import base_name
from sluicegate.wire.plans import Serving, ServingPlans
from sluicegate.wire.protocol import ModelState

_NAMED: Final = 3


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model in the list."""

    name: str
    revisions: dict[str, int]
    """How many usable backends serve each revision. The most common revision comes first."""
    states: dict[ModelState, int] = {}
    """How many usable backends have the model in each state, of those that load it on demand."""
    unserved: str = ""
    """Why no usable backend serves the model. Empty if a usable backend serves the model."""
    numbers: list[str]
    """The numbers of the revisions that backends serve."""
    problems: dict[str, int]
    """For each error of the model, the number of backends that report it."""
    plan: Serving | None
    """The operators' plan, or `None` if the model's folder decides how the model is served."""
    traffic: ModelTraffic

    @property
    def split(self) -> dict[str, float]:
        """The fraction of the items that operators have assigned to each revision."""
        weights = (self.plan.revisions if self.plan else None) or {}
        total = sum(weights.values())
        return {number: weight / total for number, weight in weights.items()}


def list_models(fleet: FleetView, plans: ServingPlans, traffic: Traffic) -> list[ModelRow]:
    """Return all models that the configuration names or that backends have, sorted by name."""
    served: defaultdict[str, Counter[str]] = defaultdict(Counter)
    states: defaultdict[str, Counter[ModelState]] = defaultdict(Counter)
    numbers: defaultdict[str, set[str]] = defaultdict(set)
    problems: defaultdict[str, Counter[str]] = defaultdict(Counter)
    unused: defaultdict[str, list[str]] = defaultdict(list)
    for backend in fleet.backends:
        # Both are computed from all reports, so they are read once for all of the backend's models.
        is_usable, reported = backend.is_usable, backend.states
        for name, revision in backend.models.items():
            base, _, number = name.partition("@")
            if number:
                numbers[base].add(number)
            elif is_usable:
                served[base][revision] += 1
                if (state := reported.get(name)) is not None:
                    states[base][state] += 1
            else:
                unused[base].append(f"{backend.id} is {backend.state}")
        for name, text in backend.problems.items():
            problems[base_name(name)][text] += 1
    configured = (
        fleet.configured if fleet.workers else ()
    )  # without workers' reports, all models would seem unserved
    by_name = {each.name: each for each in traffic.models}
    return [
        ModelRow(
            name=name,
            revisions=dict(served.get(name, Counter()).most_common()),
            states=dict(states.get(name, ())),
            unserved=""
            if name in served
            else _why_unserved(unused.get(name, ()), problems.get(name)),
            numbers=sorted(numbers.get(name, ()), key=int),
            problems=dict(problems.get(name, Counter()).most_common()),
            plan=plans.plans.get(name),
            traffic=by_name.get(name) or ModelTraffic(name=name),
        )
        for name in sorted({*served, *unused, *problems, *configured})
    ]


def _why_unserved(unused: Sequence[str], problems: Counter[str] | None) -> str:
    """Return why no usable backend serves a model."""
    if unused:
        more = f", and {len(unused) - _NAMED} more" if len(unused) > _NAMED else ""
        return ", ".join(unused[:_NAMED]) + more
    if problems:
        return "every backend that has it fails to load it"
    return "no backend has it in its repository"
