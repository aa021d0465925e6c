"""Loads a repository, and replaces each broken revision by another revision that works.

The replacement is the first of these:

1. the revision that was served last, if its files still exist
2. the revision that this process serves now
3. the newest older revision that can be loaded
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from sluicegate.backends.open_inference.address import Servers
from sluicegate.backends.repository.catalogue import Catalogue, Revisions, base_name, read_catalogue
from sluicegate.backends.repository.last_good import read_last_good, write_last_good
from sluicegate.backends.repository.manifest import builds_on
from sluicegate.backends.repository.names import NAME
from sluicegate.backends.serving.core import ModelSet, ModelSetEntry
from sluicegate.backends.serving.loading import LoadingTools, SharedResources, load_models
from sluicegate.backends.serving.residency import DeclaredEncoder
from sluicegate.wire.plans import PlanTrial, Serving, is_assigned
from sluicegate.wire.protocol import PlanVerdict

T = TypeVar("T")
Shares = Mapping[str, int]
Pinned = Mapping[str, Shares]


class RecoveredModels(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the models to serve, and the catalogue from which they were loaded."""

    catalogue: Catalogue
    model_set: ModelSet


def load_repository(
    tools: LoadingTools,
    shared: SharedResources,
    servers: Servers,
    *,
    before: ModelSet | None,
    usable: Callable[[Catalogue], Sequence[DeclaredEncoder]],
    plans: Mapping[str, Serving],
    assigned: Collection[str],
) -> RecoveredModels:
    """Load a repository; if a model's files are broken, keep its version from `before`.

    - `usable` returns the encoders that may keep running. A model is kept only if all its encoders
      are usable.
    - `plans` override the `serving.yaml` of models.
    - Only models that match a pattern of `assigned` are served. The models on which they build are
      also loaded.

    Raises:
        StartProblem: the repository's folder is missing.
    """
    search = _Search(before)
    root, more = tools.settings.models, tools.settings.more_models
    read = partial(read_catalogue, root, servers, more=more, plans=plans, assigned=assigned)
    catalogue = read()
    running = usable(catalogue)
    model_set = load_models(catalogue, tools, shared, running)
    while search.pin(catalogue, model_set):
        catalogue = read(pinned=search.pinned)
        known = [*running, *model_set.encoders]
        model_set = load_models(catalogue, tools, shared, known)
    _keep_records(catalogue, model_set, search.pinned)
    kept = _kept(
        before, catalogue, model_set, running, broken=model_set.problems.keys() | search.reasons
    )
    problems = _explained(catalogue, model_set, kept, search)
    return RecoveredModels(
        catalogue=catalogue,
        model_set=msgspec.structs.replace(
            model_set,
            served_models=_assigned(model_set.served_models, assigned),
            problems=problems | _absent(catalogue, assigned),
            kept=_assigned(kept, assigned),
        ),
    )


def _assigned(models: Mapping[str, T], assigned: Collection[str]) -> dict[str, T]:
    return {name: model for name, model in models.items() if is_assigned(name, assigned)}


def _absent(catalogue: Catalogue, assigned: Collection[str]) -> dict[str, str]:
    """Return a problem for each model that is assigned by name and missing in the repository."""
    names = {each for each in assigned if NAME.fullmatch(each)}
    there = catalogue.revisions.keys() | catalogue.problems.keys()
    reason = "it is assigned to this backend, but is not in the repository"
    return dict.fromkeys(sorted(names - there), reason)


def try_plan(
    tools: LoadingTools,
    shared: SharedResources,
    servers: Servers,
    *,
    trial: PlanTrial,
    plans: Mapping[str, Serving],
    assigned: Collection[str],
    running: Sequence[DeclaredEncoder],
) -> PlanVerdict:
    """Load a repository with a trial plan for one model, and return the result.

    Other models are loaded with their plans in `plans`. The loaded models are not served.

    Raises:
        StartProblem: the repository's folder is missing.
    """
    others = {name: plan for name, plan in plans.items() if name != trial.model}
    own = {} if trial.plan is None else {trial.model: trial.plan}
    root, more = tools.settings.models, tools.settings.more_models
    catalogue = read_catalogue(root, servers, more=more, plans=others | own, assigned=assigned)
    model_set = load_models(catalogue, tools, shared, running)

    def concerns(name: str) -> bool:
        model = catalogue.models.get(name)
        below = [] if model is None else builds_on(model.manifest)
        return any(base_name(each) == trial.model for each in (name, *below))

    for each in set(model_set.encoders).difference(running):
        if each.running is not None:
            each.running.discard()
    return PlanVerdict(
        models=[info for info in model_set.infos() if base_name(info.name) == trial.model],
        problems={n: problem for n, problem in model_set.problems.items() if concerns(n)},
    )


class _Search:
    """Chooses, for each broken model, the next revision to try."""

    def __init__(self, before: ModelSet | None) -> None:
        self._before = before
        self._candidates_by_name: dict[str, Iterator[Shares]] = {}
        self.pinned: dict[str, Shares] = {}
        self.reasons: dict[str, str] = {}

    def pin(self, catalogue: Catalogue, model_set: ModelSet) -> bool:
        """Choose the next revision to try for each broken model; return `False` if none is left.

        A model may be broken only because of a model that it builds on. Then the revisions of that
        model are tried first.
        """
        broken = [
            name
            for name in model_set.problems
            if name in catalogue.revisions
            and name not in model_set.served_models
            and name not in catalogue.waiting
        ]
        own = [name for name in broken if name not in model_set.blocked]
        return self._advance(own, catalogue, model_set) or self._advance(
            [name for name in broken if name in model_set.blocked], catalogue, model_set
        )

    def _advance(self, names: Sequence[str], catalogue: Catalogue, model_set: ModelSet) -> bool:
        advanced = False
        for name in names:
            self.reasons.setdefault(name, _reason(name, catalogue, model_set))
            revisions = catalogue.revisions[name]
            candidates = self._candidates_by_name.setdefault(
                name, self._candidates(name, revisions)
            )
            shares = next(candidates, None)
            if shares is not None:
                self.pinned[name] = shares
                advanced = True
        return advanced

    def _candidates(self, name: str, revisions: Revisions) -> Iterator[Shares]:
        last = read_last_good(revisions.folder)
        if last and last != revisions.shares and last.keys() <= set(revisions.numbers):
            yield dict(last)
        entry = self._before.find(name) if self._before is not None else None
        if entry is not None and entry.is_loaded:
            return  # the revision that this process serves is newer than these candidates
        newest = max(map(int, revisions.shares), default=None)
        for number in sorted(revisions.numbers, key=int, reverse=True):
            if (newest is None or int(number) < newest) and last != {number: 1}:
                yield {number: 1}


def _reason(name: str, catalogue: Catalogue, model_set: ModelSet) -> str:
    """Return why a model is broken: the problem of one of its revisions, or of the model itself."""
    for number in catalogue.revisions[name].shares:
        if (reason := model_set.problems.get(f"{name}@{number}")) is not None:
            return reason
    return model_set.problems[name]


def _keep_records(catalogue: Catalogue, model_set: ModelSet, pinned: Pinned) -> None:
    for name, revisions in catalogue.revisions.items():
        if name in model_set.served_models and name not in pinned:
            write_last_good(revisions.folder, revisions.shares)


def _kept(
    before: ModelSet | None,
    catalogue: Catalogue,
    model_set: ModelSet,
    running: Sequence[DeclaredEncoder],
    *,
    broken: Collection[str],
) -> dict[str, ModelSetEntry]:
    """Return the models of `before` that are broken now and can still be served.

    Models that were removed from the repository are not kept. With a broken model, its extra
    revisions (`name@number`) are also kept, because callers may name them.
    """
    if before is None:
        return {}
    usable = set(running)
    found = {}
    for name, source in before.sources().items():
        is_broken = name in broken or base_name(name) in broken
        if name in model_set.served_models or not is_broken or name in catalogue.waiting:
            continue
        part = source.model_set.subset(name)
        kept = ModelSetEntry(served_model=source.served_model, model_set=part)
        # The files of an encoder that is not loaded may be gone.
        if usable.issuperset(part.encoders) and kept.is_loaded:
            found[name] = kept
    return found


def _explained(
    catalogue: Catalogue, model_set: ModelSet, kept: Mapping[str, ModelSetEntry], search: _Search
) -> dict[str, str]:
    """Return the problem of each model, and which revision is served instead."""
    problems = dict(model_set.problems)
    for name, reason in search.reasons.items():
        if name in model_set.served_models:
            numbers = [f"`{number}`" for number in catalogue.revisions[name].shares]
            if len(numbers) == 1:
                instead = f"revision {numbers[0]} is served instead"
            else:
                instead = f"revisions {' and '.join(numbers)} are served instead"
            problems[name] = f"{reason}; {instead}"
        else:
            problems[name] = reason
    for name, retired in kept.items():
        if name in problems:
            revision = retired.served_model.info.revision
            problems[name] += f"; revision {revision} is still served instead"
    return problems
