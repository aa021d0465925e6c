"""Splits the items of a model among its revisions."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithm
from sluicegate.backends.pipelines.ask import AlgorithmContext


class WeightedAlgorithm(msgspec.Struct, frozen=True, kw_only=True):
    """Holds an algorithm, the number of its revision, and its weight in the traffic split."""

    algorithm: Algorithm
    revision: str
    weight: int


class Split(Algorithm):
    """Passes each item to one of several algorithms.

    A hash of the item and its scope (the tenant) makes the choice, so equal items of a tenant go to
    the same revision. If one of two revisions gets more weight, it keeps all items that it had.
    """

    def __init__(self, model: str, weighted: Sequence[WeightedAlgorithm]) -> None:
        self._model = model
        self._weighted = weighted
        self._total = sum(each.weight for each in weighted)
        self.version = 2 + sum(each.algorithm.version for each in weighted)

    @override
    async def run(self, item: Any, parameters: Any, ask: AlgorithmContext) -> Any:
        chosen = self.choose(ask.scope, item)
        ask.note_revision(self._model, chosen.revision)
        return await chosen.algorithm.run(item, parameters, ask)

    def choose(self, scope: str, item: Any) -> WeightedAlgorithm:
        """Return the algorithm for an item of a scope."""
        place = hash_fraction("split", scope, item) * self._total
        for each in self._weighted:
            place -= each.weight
            if place < 0:
                return each
        return self._weighted[-1]


def hash_fraction(purpose: str, scope: str, item: Any) -> float:
    """Hash an item and its scope to a number in [0, 1).

    The numbers for different purposes are independent.
    """
    content = msgspec.msgpack.encode((purpose, scope, item))
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def split_tasks(
    model: str, tasks: Sequence[Mapping[Any, Algorithm]], weights: Mapping[str, int]
) -> dict[Any, Algorithm]:
    """Return a `Split` for each task that all revisions answer.

    `tasks` has the algorithms of each revision. `weights` has the weight of each revision, under
    the name `name@number` and in the order of `tasks`.
    """
    common = [task for task in tasks[0] if all(task in algorithms for algorithms in tasks)]
    return {
        task: Split(
            model,
            [
                WeightedAlgorithm(
                    algorithm=algorithms[task], revision=name.rpartition("@")[2], weight=weight
                )
                for algorithms, (name, weight) in zip(tasks, weights.items(), strict=True)
            ],
        )
        for task in common
    }
