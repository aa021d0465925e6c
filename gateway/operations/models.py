"""Reloads the backends' model repositories."""

from collections import Counter
from collections.abc import Mapping

import msgspec

from gateway.http.problem_details import Problem
from gateway.ledger.audit import Audit
from gateway.operations.fleet_view import BackendView

# A reload takes this long because backends load a new revision before they serve it.
RELOAD_TIMEOUT = 60.0
_MAX_NAMED = 5


class ModelChange(msgspec.Struct, frozen=True, kw_only=True):
    """The revision of a model before and after a reload.

    `null` means that the model was not served.
    """

    old: str | None
    new: str | None


class BackendModels(msgspec.Struct, frozen=True, kw_only=True):
    """The models of a backend after a reload.

    `problems` maps each broken model to its error. The error also names the revision that is still
    served.
    """

    region: str
    models: dict[str, ModelChange]
    problems: dict[str, str]


class ReloadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a reload. `live` is true if all backends and workers use the new models."""

    live: bool
    workers: dict[str, str]
    backends: dict[str, BackendModels]


class BrokenModelsProblem(Problem, frozen=True, kw_only=True, omit_defaults=True):
    """The problem document of a reload that found broken models. It has the state of all models."""

    live: bool
    workers: dict[str, str]
    backends: dict[str, BackendModels]


def changes(
    before: Mapping[str, BackendView], after: Mapping[str, BackendView]
) -> dict[str, BackendModels]:
    """Return the revision of each model on each backend, before and after the reload."""
    found = {}
    for name, view in sorted(after.items()):
        old = before[name].models if name in before else {}
        found[name] = BackendModels(
            region=view.region,
            models={
                model: ModelChange(old=old.get(model), new=view.models.get(model))
                for model in sorted({*old, *view.models})
            },
            problems=view.problems,
        )
    return found


def audit_outcome(audit: Audit, actor: str, backends: Mapping[str, BackendModels]) -> None:
    """Write an audit entry for each changed revision and each broken model.

    Raises:
        DependencyUnavailable: the ledger cannot be reached; entries may be missing.
    """
    changed = Counter(
        (model, change)
        for backend in backends.values()
        for model, change in backend.models.items()
        if change.old != change.new
    )
    broken = Counter(one for backend in backends.values() for one in backend.problems.items())
    for (model, change), count in changed.items():
        detail: dict[str, object] = {"old": change.old, "new": change.new, "backends": count}
        audit(actor, "models.reload.done", model, detail)
    for (model, reason), count in broken.items():
        detail = {"problem": reason, "backends": count}
        audit(actor, "models.reload.failed", model, detail)


def explain_problems(problems: Mapping[str, Mapping[str, str]]) -> str:
    """Return one line that lists each problem with its model and the backends that have it."""
    where: dict[tuple[str, str], list[str]] = {}
    for backend, models in problems.items():
        for model, reason in models.items():
            where.setdefault((model, reason), []).append(backend)
    lines = [
        f"`{model}` on {', '.join(f'`{backend}`' for backend in places)}: {reason}"
        for (model, reason), places in where.items()
    ]
    rest = f"; and {len(lines) - _MAX_NAMED} more" if len(lines) > _MAX_NAMED else ""
    return "; ".join(lines[:_MAX_NAMED]) + rest
