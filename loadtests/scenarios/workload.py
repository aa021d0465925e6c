"""Makes the requests of a run: tasks, texts and tenants, all chosen by a seed.

Each text is one of 500 real texts with a number added, so that any number of distinct texts has
realistic lengths. `script.js` builds the same requests.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any  # Any: bodies are JSON

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.scenarios.catalogue import Plan

TEXTS = Path(__file__).parents[2] / "tests" / "parity" / "data" / "texts.txt"
NUMBERS = 1 << 24
_PLACE = "@text"
_LONGEST_LIST = 7
"""More texts than any request uses. The numbers of a request's texts are consecutive, so this must
not divide 500."""
_DISTINCT = 20_000
"""The number of texts that repeat."""
_SPARE = 60_000
"""The requests of a closed loop, which does not say in advance how many it sends."""
_LABELS = ["billing", "travel", "science"]
_SHAPES: dict[str, tuple[int, str, Mapping[str, Any]]] = {
    "classify": (6, "/v1/classify", {"input": _PLACE}),
    "embed": (4, "/v1/embed", {"input": [_PLACE, _PLACE]}),
    "rerank": (1, "/v1/rerank", {"query": _PLACE, "documents": [_PLACE] * 4}),
    "zero-shot": (1, "/v1/zero-shot", {"input": _PLACE, "labels": _LABELS}),
    "choose": (1, "/v1/choose", {"input": {"prompt": _PLACE, "choices": [_PLACE] * 2}}),
    "entities": (1, "/v1/entities", {"input": _PLACE}),
}
"""A task's weight among the requests, its route, and its body without the model."""
Requests = npt.NDArray[np.int64]
"""For each request in order: template, number of its first text, tenant."""


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of request: its path, and its body with a placeholder for each text."""

    path: str
    body: str
    weight: float


def templates(
    models: Mapping[str, Sequence[str]], *, only: Sequence[str] = ()
) -> Iterator[Template]:
    """Yield the kinds of requests for `models` and their tasks, or only for the models in `only`.

    Each task has a share of the requests. The models that have the task get equal parts of this
    share.
    """
    wanted = {name: tasks for name, tasks in models.items() if not only or name in only}
    for task, (weight, path, body) in _SHAPES.items():
        serving = [name for name, tasks in wanted.items() if task in tasks]
        for name in serving:
            yield Template(
                path=path,
                body=msgspec.json.encode({"model": name, **body}).decode(),
                weight=weight / len(serving),
            )


def make_requests(kinds: Sequence[Template], plan: Plan, *, tenants: int, zipf: float) -> Requests:
    """Return the requests of a plan.

    Texts repeat according to a Zipf distribution with the exponent `zipf`. If `zipf` is 0, no text
    repeats.
    """
    chooser = np.random.default_rng(1)
    count = plan.arrivals + (_SPARE if plan.callers else 0)
    weights = np.array([one.weight for one in kinds])
    chosen = chooser.choice(len(weights), size=count, p=weights / weights.sum())
    owners = chooser.integers(tenants, size=count)
    numbers = np.arange(count)
    if zipf:
        shares = 1.0 / np.arange(1, _DISTINCT + 1) ** zipf
        # How often the texts were exchanged for other texts before each request.
        steps = np.cumsum([phase.new_texts for phase in plan.phases])
        exchanged = np.repeat(steps, [phase.arrivals for phase in plan.phases])
        numbers = chooser.choice(_DISTINCT, size=count, p=shares / shares.sum())
        numbers += _DISTINCT * exchanged
    return np.stack([chosen, numbers * _LONGEST_LIST % NUMBERS, owners], axis=1)


def ideal_hits(requests: Requests) -> int:
    """Return how many requests a cache that forgets nothing would answer.

    Only an earlier request of the same tenant counts.
    """
    return len(requests) - len(np.unique(requests, axis=0))
