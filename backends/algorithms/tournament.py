"""Ranks documents by comparing pairs, without comparing every pair."""

from collections.abc import Sequence
from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.backends.algorithms.base import (
    Algorithm,
    Algorithms,
    ModelAlgorithms,
    Recipe,
    all_of,
)
from sluicegate.backends.algorithms.labels import Labeller, labellers
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.wire.protocol import InferParameters, Task

MAX_DOCUMENTS = 256


class _RankingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    documents: list[str]
    query: str = ""


class _Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    top_n: int | None = None


class Tournament(Algorithm):
    """Ranks documents with a model that tells which of two texts is better.

    The algorithm is tree selection (Knuth, The Art of Computer Programming 3, 5.2.3). A knockout
    finds the best of `n` documents in `n - 1` comparisons. After that, finding the next best
    document means replaying one path of the tree, which takes at most `ceil(log2 n)` comparisons.
    No pair is compared twice. The comparisons of one level of the tree run concurrently. For
    language models as judges, see Qin et al. 2023 (arXiv:2306.17563).
    """

    def __init__(self, *, judge: Labeller, better: str, both_ways: bool) -> None:
        """`better` is the judge's label for a pair whose first text is better."""
        self._judge = judge
        self._better = judge.labels.index(better)
        self._both_ways = both_ways
        self.version = 1 + judge.version

    @override
    async def run(self, item: Any, parameters: InferParameters, ask: AlgorithmContext) -> Any:
        request, top = _read(item, parameters)
        knockout = _Knockout(self, request, ask)
        ranking = await knockout.rank(top)
        return {
            "ranking": [{"index": index} for index in ranking],
            "comparisons": knockout.comparisons,
        }

    async def compare(self, query: str, first: str, second: str, ask: AlgorithmContext) -> bool:
        """Return whether the first document is at least as good an answer as the second."""
        if not self._both_ways:
            return await self._likelihood(query, first, second, ask) >= 0.5  # noqa: PLR2004
        ahead, behind = await all_of(
            [
                self._likelihood(query, first, second, ask),
                self._likelihood(query, second, first, ask),
            ]
        )
        return bool(ahead >= behind)

    async def _likelihood(
        self, query: str, first: str, second: str, ask: AlgorithmContext
    ) -> float:
        pair = (f"{query} {first}" if query else first, second)
        return float((await self._judge.scores(pair, ask, "softmax"))[self._better])


class _Knockout:
    """Plays a knockout over the documents of one item, and remembers comparisons."""

    def __init__(
        self, tournament: Tournament, request: _RankingRequest, ask: AlgorithmContext
    ) -> None:
        self._tournament = tournament
        self._request = request
        self._ask = ask
        self._winners: dict[tuple[int, int], int] = {}

    @property
    def comparisons(self) -> int:
        """The number of pairs that were compared."""
        return len(self._winners)

    async def rank(self, top: int) -> list[int]:
        """Return the indexes of the best `top` documents, best first."""
        remaining = list(range(len(self._request.documents)))
        ranking: list[int] = []
        while len(ranking) < top:
            best = await self._best(remaining)
            ranking.append(best)
            # The best document leaves the tree. Its next opponent wins without a comparison.
            remaining[remaining.index(best)] = -1
        return ranking

    async def _best(self, players: Sequence[int]) -> int:
        """Return the winner of a knockout of `players`; reuse earlier comparisons."""
        while len(players) > 1:
            pairs = [players[at : at + 2] for at in range(0, len(players), 2)]
            # Most pairs of a replay were compared before and need no task.
            unknown = [pair for pair in pairs if self._winner(pair) is None]
            await all_of(self._play(*pair) for pair in unknown)
            players = [winner for pair in pairs if (winner := self._winner(pair)) is not None]
        return players[0]

    def _winner(self, pair: Sequence[int]) -> int | None:
        """Return the winner of a pair; `None` if the documents were not compared yet.

        The number -1 replaces a document that is already ranked. This number loses against every
        document. If both documents are already ranked, the winner is -1.
        """
        present = [player for player in pair if player >= 0]
        if len(present) < 2:  # noqa: PLR2004 - a pair
            return present[0] if present else -1
        first, second = present
        return self._winners.get((first, second))

    async def _play(self, first: int, second: int) -> None:
        documents = self._request.documents
        is_first = await self._tournament.compare(
            self._request.query, documents[first], documents[second], self._ask
        )
        self._winners[first, second] = first if is_first else second


def _read(item: Any, parameters: InferParameters) -> tuple[_RankingRequest, int]:
    try:
        request = msgspec.convert(item, _RankingRequest)
    except msgspec.ValidationError as error:
        raise ItemRefused("bad_item", f"an item must be {{documents, query}}: {error}") from None
    try:
        top = msgspec.convert(parameters.parameters, _Parameters).top_n
    except msgspec.ValidationError as error:
        raise ItemRefused("bad_parameter", f"the only parameter is `top_n`: {error}") from None
    if not request.documents:
        raise ItemRefused("bad_item", "`documents` is empty; send at least one document")
    if len(request.documents) > MAX_DOCUMENTS:
        raise ItemRefused("bad_item", f"`documents` has more than {MAX_DOCUMENTS} entries")
    if top is not None and top < 1:
        raise ItemRefused("bad_parameter", "`top_n` must be at least 1; leave it out for all")
    return request, min(len(request.documents), top or MAX_DOCUMENTS)


class TournamentRecipe(Recipe, frozen=True):
    """Builds a tournament; `better` is the label for a pair whose first text is better."""

    better: str
    both_ways: bool = True

    @override
    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        (judge, *others) = labellers(below)
        if others or self.better not in judge.labels:
            raise ValueError("needs one model that has the label `better`")
        return {Task.INFER: Tournament(judge=judge, better=self.better, both_ways=self.both_ways)}
