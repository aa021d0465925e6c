"""Classifies into many labels by walking down a tree of labels."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from typing_extensions import override

from sluicegate.backends.algorithms.base import (
    Algorithms,
    ModelAlgorithms,
    Recipe,
    WindowedAlgorithm,
    all_of,
    only_algorithm,
)
from sluicegate.backends.algorithms.labels import Label, Labeller, WindowScores
from sluicegate.backends.algorithms.long_document import LongZeroShot
from sluicegate.backends.algorithms.questions import ZeroShotTask
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.windows import MAX_PAIRS, Span, Windows
from sluicegate.backends.types import FloatArray, Text
from sluicegate.wire.protocol import Function, Task, ZeroShotParameters

_Score = Callable[[ZeroShotParameters], Awaitable[dict[str, float]]]
"""Returns the score of each label that the parameters have."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a label and its children. Only leaves, which have no children, appear in results."""

    name: str
    children: list["Node"] = []


class LabelTree(Labeller):
    """Walks a tree of labels down from its root, with a zero-shot model at every node.

    See Bengio, Weston and Grangier 2010. A leaf's score is the product of the probabilities on its
    path. At each depth, the walk follows only the `beam` best nodes, so that it does not score
    every leaf. Leaves that the walk does not reach are missing from the result.
    """

    def __init__(
        self,
        *,
        judge: ZeroShotTask,
        tree: Sequence[Node],
        template: str,
        beam: int,
    ) -> None:
        super().__init__(labels=[leaf.name for node in tree for leaf in _leaves(node)])
        self._judge = judge
        self._tree = tree
        self._template = template
        self._beam = beam
        self._most_children = max(map(len, _sisters(tree)))
        self.version = 1 + judge.version

    @override
    async def rank(
        self,
        text: Text,
        ask: AlgorithmContext,
        *,
        top: int | None = None,
        function: Function | None = None,
    ) -> list[Label]:
        ranked = await super().rank(text, ask, top=top, function=function)
        return [label for label in ranked if label.score > 0.0]

    @override
    async def scores(
        self, text: Text, ask: AlgorithmContext, function: Function | None = None
    ) -> FloatArray:
        if function not in (None, "softmax"):
            detail = "a label tree only supports `function` `softmax`; leave it out"
            raise ItemRefused("bad_function", detail)
        if not isinstance(text, str):
            raise ItemRefused("bad_item", "a label tree reads one text, not a pair")
        judge = self._judge

        async def score(asked: ZeroShotParameters) -> dict[str, float]:
            return {one.label: one.score for one in await judge.rank(text, asked, ask)}

        return await self._walk(score)

    @override
    async def window_scores(
        self, text: str, ask: AlgorithmContext, windows: Windows
    ) -> WindowScores:
        """Return the scores of a walk for each window of the model below.

        Raises:
            ItemRefused: the text has too many windows for the children of a node.
        """
        judge = self._judge.below if isinstance(self._judge, LongZeroShot) else self._judge
        if not isinstance(judge, WindowedAlgorithm):
            return await super().window_scores(text, ask, windows)
        spans = await ask.window_places(judge.model, text, windows)
        # With its label, a part may take two windows.
        if 2 * len(spans) * self._most_children > MAX_PAIRS:
            raise ItemRefused(
                "input_too_long",
                f"the text has {len(spans)} windows, and a node of the label tree has"
                f" {self._most_children} children; send the text in parts",
            )

        async def walk(span: Span) -> FloatArray:
            part = text[slice(*span)]

            async def score(asked: ZeroShotParameters) -> dict[str, float]:
                lines = await judge.window_scores(part, asked, ask, windows)
                return dict(zip(asked.labels, lines.max(axis=0).tolist(), strict=True))

            return await self._walk(score)

        async def places() -> list[Span]:
            return spans

        return WindowScores(np.stack(await all_of(map(walk, spans))), places)

    async def _walk(self, score: _Score) -> FloatArray:
        reached: dict[str, float] = {}
        beam: list[tuple[float, Sequence[Node]]] = [(1.0, self._tree)]
        while beam:
            scored = await all_of(self._score_children(nodes, score) for _, nodes in beam)
            found = [
                (above * probability, node)
                for (above, _), children in zip(beam, scored, strict=True)
                for probability, node in children
            ]
            best = sorted(found, key=lambda entry: -entry[0])[: self._beam]
            reached |= {node.name: product for product, node in best if not node.children}
            beam = [(product, node.children) for product, node in best if node.children]
        return np.array([reached.get(label, 0.0) for label in self.labels], dtype=np.float32)

    async def _score_children(
        self, nodes: Sequence[Node], score: _Score
    ) -> list[tuple[float, Node]]:
        if len(nodes) == 1:
            return [(1.0, nodes[0])]
        names = [node.name for node in nodes]
        asked = ZeroShotParameters(labels=names, hypothesis_template=self._template)
        scores = await score(asked)
        return [(scores[node.name], node) for node in nodes]


def read_tree(written: Any) -> list[Node]:
    """Read the option `tree`: nested mappings from names to subtrees, or lists of leaves.

    Raises:
        ValueError: the tree does not have this form, a name is empty, or two leaves or two children
            of one node have equal names.
    """
    nodes = _read(written)
    names = [leaf.name for node in nodes for leaf in _leaves(node)]
    if len(set(names)) != len(names):
        raise ValueError("has a leaf twice in its `tree`")
    return nodes


def _read(written: Any) -> list[Node]:
    nodes: list[Node] = []
    if isinstance(written, Mapping):
        nodes = [
            Node(name=str(name), children=[] if below is None else _read(below))
            for name, below in written.items()
        ]
    elif isinstance(written, list):
        nodes = [node for entry in written for node in _read_entry(entry)]
    names = [node.name for node in nodes]
    if not nodes or len(set(names)) != len(names) or not all(map(str.strip, names)):
        raise ValueError(
            "needs a `tree`: mappings of names to subtrees, or lists of leaves, without empty or "
            "equal names below one node"
        )
    return nodes


def _read_entry(entry: Any) -> list[Node]:
    return _read(entry) if isinstance(entry, Mapping) else [Node(name=str(entry))]


def _sisters(nodes: Sequence[Node]) -> Iterator[Sequence[Node]]:
    """Yield the children of each node of a tree."""
    if nodes:
        yield nodes
    for node in nodes:
        yield from _sisters(node.children)


def _leaves(node: Node) -> Iterator[Node]:
    if not node.children:
        yield node
    for child in node.children:
        yield from _leaves(child)


class LabelTreeRecipe(Recipe, frozen=True):
    """Builds a label tree over a model that answers `zero-shot`."""

    tree: Any
    template: str = "This text is about {}."
    beam: Annotated[int, msgspec.Meta(ge=1)] = 1

    @override
    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        if self.template.count("{}") != 1:
            raise ValueError("needs a `template` that contains `{}` exactly once")
        judge = only_algorithm(below, ZeroShotTask, "one that answers `zero-shot`")  # type: ignore[type-abstract]
        tree = read_tree(self.tree)
        return {
            Task.CLASSIFY: LabelTree(judge=judge, tree=tree, template=self.template, beam=self.beam)
        }
