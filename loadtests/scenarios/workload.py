"""Makes the requests of a run: tasks, texts and tenants, all chosen by a seed.

Lengths are those of real texts. A text is one of 500 real ones with a number that makes it another,
so that as many as are wanted are distinct. `script.js` puts the same requests together.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any  # Any: bodies are JSON

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.scenarios.catalogue import Plan

_TEXTS = Path(__file__).parents[2] / "tests" / "parity" / "data" / "texts.txt"
_PLACE = "@text"
_LONGEST_LIST = 7
"""More texts than one request uses, whose numbers follow on each other; no divisor of 500."""
_SALTS, _NUMBERS = 1 << 16, 1 << 24
_LABELS = ["billing", "travel", "science"]


class _Shape(msgspec.Struct, frozen=True):
    """A task's weight among the requests, its route, and its body without the model."""

    weight: float
    path: str
    body: Mapping[str, Any]


_SHAPES = {
    "classify": _Shape(6, "/v1/classify", {"input": _PLACE}),
    "embed": _Shape(4, "/v1/embed", {"input": [_PLACE, _PLACE]}),
    "rerank": _Shape(1, "/v1/rerank", {"query": _PLACE, "documents": [_PLACE] * 4}),
    "zero-shot": _Shape(1, "/v1/zero-shot", {"input": _PLACE, "labels": _LABELS}),
    "choose": _Shape(1, "/v1/choose", {"input": {"prompt": _PLACE, "choices": [_PLACE] * 2}}),
    "entities": _Shape(1, "/v1/entities", {"input": _PLACE}),
}


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of request: where it goes, and its body with a place for each text."""

    name: str
    path: str
    body: str
    weight: float


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a run in their order: template, number of the first text, tenant."""

    templates: tuple[Template, ...]
    texts: tuple[str, ...]
    salt: int
    """Differs from run to run, so that no answer of a former one is in the cache."""
    requests: npt.NDArray[np.int64]

    def encode(self) -> bytes:
        """Return what the script of k6 reads."""
        return msgspec.json.encode({"texts": self.texts, "requests": self.requests.tolist()})

    @property
    def first_number(self) -> int:
        """The number of the first text."""
        return self.salt * _NUMBERS

    def ideal_hits(self) -> npt.NDArray[np.bool_]:
        """Return which requests came before: hits of a cache that forgets nothing.

        Answers are a tenant's own.
        """
        first = np.unique(self.requests, axis=0, return_index=True)[1]
        known = np.ones(len(self.requests), dtype=np.bool_)
        known[first] = False
        return known


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """What requests are made of."""

    templates: tuple[Template, ...]
    tenants: int
    zipf: float
    """The exponent of how often texts repeat; 0 is never."""
    distinct: int
    """Texts among which those that repeat are chosen."""
    seed: int


@functools.cache
def real_texts() -> tuple[str, ...]:
    """Return the real texts."""
    return tuple(_TEXTS.read_text(encoding="utf-8").strip("\n").split("\n"))


def templates(models: Mapping[str, Sequence[str]], *, only: Sequence[str] = ()) -> list[Template]:
    """Return the kinds of requests for models and their tasks, or for those models only.

    Each task has its share, which its models have in equal parts.
    """
    wanted = {name: tasks for name, tasks in models.items() if not only or name in only}
    found: list[Template] = []
    for task, shape in _SHAPES.items():
        serving = [name for name, tasks in wanted.items() if task in tasks]
        found += [
            Template(
                name=f"{task} {name}",
                path=shape.path,
                body=msgspec.json.encode({"model": name, **shape.body}).decode(),
                weight=shape.weight / len(serving),
            )
            for name in serving
        ]
    return found


def make_workload(mix: Mix, plan: Plan, *, salt: int, spare: int = 0) -> Workload:
    """Return the requests of a plan, and `spare` more."""
    chooser = np.random.default_rng(mix.seed)
    count = plan.arrivals + spare
    weights = np.array([one.weight for one in mix.templates])
    kinds = chooser.choice(len(weights), size=count, p=weights / weights.sum())
    tenants = chooser.integers(mix.tenants, size=count)
    numbers = np.arange(count) if not mix.zipf else _zipf(chooser, mix, count)
    numbers += mix.distinct * _populations(plan, count) if mix.zipf else 0
    return Workload(
        templates=mix.templates,
        texts=real_texts(),
        salt=salt % _SALTS,
        requests=np.stack([kinds, numbers * _LONGEST_LIST % _NUMBERS, tenants], axis=1),
    )


def _zipf(chooser: np.random.Generator, mix: Mix, count: int) -> npt.NDArray[np.int64]:
    shares = 1.0 / np.arange(1, mix.distinct + 1) ** mix.zipf
    return chooser.choice(mix.distinct, size=count, p=shares / shares.sum()).astype(np.int64)


def _populations(plan: Plan, count: int) -> npt.NDArray[np.int64]:
    """Return for each request how often the texts have been exchanged for others before it."""
    steps = np.cumsum([phase.new_texts for phase in plan.phases])
    each = np.repeat(steps, [phase.arrivals for phase in plan.phases])
    return np.concatenate([each, np.full(count - len(each), steps[-1])])
