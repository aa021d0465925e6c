"""Builds the algorithms that a `model.yaml` can name, from the models under its `uses`."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import msgspec

from backends.algorithms import ensemble
from backends.algorithms.base import Algorithm, ModelAlgorithms
from backends.algorithms.budget import Budget
from backends.algorithms.cascade import Cascade
from backends.algorithms.classify import Classify, Labeller
from backends.algorithms.custom import Custom
from backends.algorithms.ensemble import Ensemble
from backends.algorithms.hosts import AlgorithmHosts
from backends.algorithms.label_tree import LabelTree, read_tree
from backends.algorithms.long_document import read_in_windows
from backends.algorithms.pairs import CrossEncode, EntailmentZeroShot, MultipleChoice
from backends.algorithms.questions import ZeroShotTask
from backends.algorithms.reviewer import Reviewer
from backends.algorithms.tournament import Tournament
from backends.algorithms.windows import Combination
from backends.algorithms.zero_shot import Choose, ZeroShot
from backends.repository.model import Model
from wire.protocol import Task

Algorithms = dict[Task, Algorithm]
# Raises `ValueError` if the algorithm cannot be built. The message continues a sentence that
# begins with the algorithm's name.
Recipe = Callable[[Model, Sequence[ModelAlgorithms]], Algorithms]
Kind = TypeVar("Kind", bound=Algorithm)
Options = TypeVar("Options")
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
CUSTOM = "custom"
_CLASSIFIER = "a classifier with its own graph or head"


class _Cascade(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    threshold: Share


class _Ensemble(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    combine: ensemble.Combination = "mean"
    weights: list[Annotated[float, msgspec.Meta(gt=0.0)]] = []


class _LongDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    combine: Combination | None = None
    overlap: Annotated[int, msgspec.Meta(ge=0)] = 32


class _LabelTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tree: Any
    template: str = "This text is about {}."
    beam: Count = 1


class _Tournament(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    better: str
    both_ways: bool = True


class _NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def _zero_shot(model: Model, below: Sequence[ModelAlgorithms]) -> Algorithms:
    _options(model, _NoOptions)
    if len(below) != 1 or below[0].info.algorithm != "embedding":
        raise ValueError("needs one `encoder`")
    name = below[0].info.name
    return {Task.ZERO_SHOT: ZeroShot(model=name), Task.CHOOSE: Choose(model=name)}


def _entailment(model: Model, below: Sequence[ModelAlgorithms]) -> Algorithms:
    _options(model, _NoOptions)
    judge = _only(below, Classify, _CLASSIFIER)
    try:
        return {Task.ZERO_SHOT: EntailmentZeroShot(model=judge.model, labels=judge.labels)}
    except ValueError as error:
        raise ValueError(f"cannot use `{judge.model}`: {error}") from None


def _multiple_choice(model: Model, below: Sequence[ModelAlgorithms]) -> Algorithms:
    _options(model, _NoOptions)
    return {Task.CHOOSE: MultipleChoice(model=_only(below, Classify, _CLASSIFIER).model)}


def _cross_encoder(model: Model, below: Sequence[ModelAlgorithms]) -> Algorithms:
    _options(model, _NoOptions)
    judge = _only(below, Classify, _CLASSIFIER)
    # Prefer the model's own cross-encoder, which knows the `rerank_function` of the model.
    return {Task.RERANK: _find(below, CrossEncode) or CrossEncode(model=judge.model)}


def _cascade(model: Model, below: Sequence[ModelAlgorithms]) -> Algorithms:
    options = _options(model, _Cascade)
    found = _labellers(below)
    if len(found) != 2:  # noqa: PLR2004 - a small and a large one
        raise ValueError("needs `uses` of two models: the small one, then the large one")
    small, large = found
    return {Task.CLASSIFY: Cascade(small=small, large=large, threshold=options.threshold)}


def _ensemble(model: Model, below: Sequence[ModelAlgorithms]) -> Algorithms:
    options = _options(model, _Ensemble)
    classifiers = _labellers(below)
    if options.combine == "weighted" and not options.weights:
        raise ValueError("needs `weights`, one for each model it uses")
    if options.combine == "mean" and options.weights:
        raise ValueError("uses `weights` only where `combine` is `weighted` or `vote`")
    weights = options.weights or [1.0] * len(classifiers)
    if len(weights) != len(classifiers):
        raise ValueError(f"has {len(weights)} `weights` for the {len(classifiers)} models it uses")
    return {
        Task.CLASSIFY: Ensemble(classifiers=classifiers, combine=options.combine, weights=weights),
    }


def _long_document(model: Model, below: Sequence[ModelAlgorithms]) -> Algorithms:
    options = _options(model, _LongDocument)
    if len(below) == 1:
        if options.overlap > below[0].info.max_tokens // 2:
            raise ValueError("has an `overlap` of more than half the tokens that its model reads")
        found = {
            task: read_in_windows(task, algorithm, combine=options.combine, overlap=options.overlap)
            for task, algorithm in below[0].algorithms.items()
        }
        if available := {task: long for task, long in found.items() if long is not None}:
            return available
    raise ValueError(
        "needs `uses` of one model that answers `classify`, `embed`, `rerank`, `zero-shot` or "
        "`choose` and is not itself a `long-document`"
    )


def _label_tree(model: Model, below: Sequence[ModelAlgorithms]) -> Algorithms:
    options = _options(model, _LabelTree)
    if options.template.count("{}") != 1:
        raise ValueError("needs a `template` that contains `{}` exactly once")
    judge = _only(below, ZeroShotTask, "one that answers `zero-shot`")  # type: ignore[type-abstract]
    tree = read_tree(options.tree)
    return {
        Task.CLASSIFY: LabelTree(
            judge=judge, tree=tree, template=options.template, beam=options.beam
        )
    }


def _tournament(model: Model, below: Sequence[ModelAlgorithms]) -> Algorithms:
    options = _options(model, _Tournament)
    (judge, *others) = _labellers(below)
    if others or options.better not in judge.labels:
        raise ValueError("needs one model that has the label `better`")
    return {Task.INFER: Tournament(judge=judge, better=options.better, both_ways=options.both_ways)}


def build_custom(
    model: Model, below: Sequence[ModelAlgorithms], hosts: AlgorithmHosts
) -> Algorithms:
    """Return a model owner's algorithm, which runs in a process of `hosts`.

    Raises:
        ValueError: the algorithm cannot be built. The message has no subject, so that callers can
            put the algorithm's name before it.
    """
    budget = _options(model, Budget)
    code: str | None = getattr(model.manifest, "code", None)
    if code is None:
        raise ValueError("needs `code`: a file beside the `model.yaml`, or `package.module:run`")
    host = hosts.open((model.name, model.revision), code=code, folder=model.folder, budget=budget)
    known = {served_model.info.name: served_model.algorithms for served_model in below}
    return {Task.INFER: Custom(host=host, below=known, rows=budget.rows)}


def _reviewer(model: Model, below: Sequence[ModelAlgorithms]) -> Algorithms:
    _options(model, _NoOptions)
    match [algorithm for served_model in below for algorithm in served_model.algorithms.values()]:
        case [Labeller() as mood, ZeroShotTask() as topics, *_, Labeller() as intent]:
            return {Task.INFER: Reviewer(mood=mood, topics=topics, intent=intent)}
        case _:
            raise ValueError(
                "needs `uses` of a model for the mood, one for topics (zero-shot) and one for "
                "intents, in this order"
            )


def _options(model: Model, kind: type[Options]) -> Options:
    options = getattr(model.manifest, "options", {})
    try:
        return msgspec.convert(options, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"cannot read its `options`: {error}") from None


def _find(below: Sequence[ModelAlgorithms], kind: type[Kind]) -> Kind | None:
    """Return an algorithm of type `kind` from the model below.

    Return `None` if the model has no such algorithm, or if there is not exactly one model below.
    """
    if len(below) != 1:
        return None
    found = (algorithm for algorithm in below[0].algorithms.values() if isinstance(algorithm, kind))
    return next(found, None)


def _only(below: Sequence[ModelAlgorithms], kind: type[Kind], what: str) -> Kind:
    found = _find(below, kind)
    if found is None:
        raise ValueError(f"needs `uses` of one model: {what}")
    return found


def _labellers(below: Sequence[ModelAlgorithms]) -> list[Labeller]:
    """Return the classifier of each model below.

    Raises:
        ValueError: a model does not classify, or labels differ.
    """
    found = [
        algorithm
        for served_model in below
        for algorithm in served_model.algorithms.values()
        if isinstance(algorithm, Labeller)
    ]
    if not found or len(found) != len(below):
        raise ValueError("needs `uses` of models that classify")
    if any(set(algorithm.labels) != set(found[0].labels) for algorithm in found):
        raise ValueError("needs `uses` of models with the same labels")
    return found


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "zero-shot-embedding": _zero_shot,
        "zero-shot-entailment": _entailment,
        "multiple-choice": _multiple_choice,
        "cross-encoder": _cross_encoder,
        "long-document": _long_document,
        "cascade": _cascade,
        "ensemble": _ensemble,
        "label-tree": _label_tree,
        "tournament": _tournament,
        "reviewer": _reviewer,
    }
)
