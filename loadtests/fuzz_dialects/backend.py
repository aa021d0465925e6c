"""Answers like a backend, sometimes late and in any order; each result names tenant and text.

A result that was computed for another caller or text is thus recognizable in the answer. The judge
computes its expected answers by the same functions.
"""

import asyncio
import hashlib
import random
from collections.abc import Callable
from typing import Any  # Any: the items of all tasks

import msgspec

from sluicegate.backends.algorithms.questions import check_choices, hypotheses
from sluicegate.backends.errors import ItemRefused
from sluicegate.wire.protocol import (
    Call,
    Done,
    EmbedParameters,
    Failed,
    ModelInfo,
    RerankParameters,
    Task,
    ZeroShotParameters,
)
from testing.stub_backend import Reply, StubBackend, stub_model

MODELS = {
    "vectors": [Task.EMBED, Task.RERANK],
    "words": [Task.CLASSIFY],
    "topic": [Task.ZERO_SHOT],
    "people": [Task.ENTITIES],
    "asked": [Task.ANSWER],
}
"""The models that the dialects ask for."""
SHARED = "-shared"
"""The suffix of the names of models whose answers all tenants share."""
MODERATION = {"negative": "harm"}
DOCUMENT_MODELS: dict[str, dict[str, Any]] = {
    "words": {"moderation": MODERATION},
    **{name + SHARED: {"scope": "shared"} for name in MODELS},
}
_DOCUMENTED = (
    *("stub", "sentiment", "topics", "minilm", "entities-demo", "reviewer"),
    *("gliner", "answers", "splade"),
)
"""Models of every task, including the models in the examples of the customers' OpenAPI document."""
_PAUSES = (*(0.0,) * 12, 0.001, 0.005, 0.03)
_DIMENSIONS, _MOST_DIMENSIONS = 8, 1024


def models() -> list[ModelInfo]:
    """Return all models: with answers for each tenant, with shared answers, and for every task."""
    own = [
        msgspec.structs.replace(
            stub_model(name + end), tasks=tasks, labels=["negative", "positive"]
        )
        for name, tasks in MODELS.items()
        for end in ("", SHARED)
    ]
    documented = [stub_model(name) for name in _DOCUMENTED]
    documented[-1] = msgspec.structs.replace(documented[-1], outputs=["sparse"])
    return own + documented


def tokens(text: str) -> int:
    """Return the number of tokens of a text."""
    return 1 + len(text) % 7


def vector(scope: str, text: str, dimensions: int | None, *, normalize: bool = True) -> list[float]:
    """Return the vector of a text; float32 represents it exactly, and no element is zero."""
    digest = _digest(dimensions or _DIMENSIONS, scope, text, dimensions, normalize)
    return [(2 * byte - 255) / 256 for byte in digest]


def score(scope: str, *texts: str) -> float:
    """Return the score of a text, between 0 and 1; float32 represents it exactly."""
    return int.from_bytes(_digest(2, scope, *texts)) / 2**16


def labels(scope: str, text: str) -> list[dict[str, Any]]:
    """Return two labels of a text; the first label contains scope and text."""
    best = 0.5 + score(scope, text) / 4
    return [{"label": f"{scope}|{text}", "score": best}, {"label": "negative", "score": 1 - best}]


def chosen(scope: str, text: str, names: list[str]) -> list[dict[str, Any]]:
    """Return the caller's labels for a text, best first."""
    found = [{"label": name, "score": score(scope, text, name)} for name in names]
    return sorted(found, key=lambda one: one["score"], reverse=True)


def entity(scope: str, text: str) -> dict[str, Any]:
    """Return the entity at the beginning of a text."""
    start = text[:3]
    return {
        "label": f"{scope}|{text}",
        "score": score(scope, text),
        "text": start,
        "start": 0,
        "end": len(start),
    }


def span(scope: str, question: str, text: str) -> dict[str, Any]:
    """Return the answer at the beginning of a text."""
    start = text[:3]
    return {"answer": start, "score": score(scope, question, text), "start": 0, "end": len(start)}


def _digest(size: int, *parts: object) -> bytes:
    return hashlib.shake_128(repr(parts).encode()).digest(size)


async def answer(stub: StubBackend, call: Call, reply: Reply) -> None:
    """Answer the items of a call in random order."""
    places = list(range(len(call.items)))
    random.shuffle(places)
    middle = random.randint(0, len(places))
    for part in (places[:middle], places[middle:]):
        await asyncio.sleep(random.choice(_PAUSES))
        if part:
            await reply.send(*(outcome(call, place) for place in part))
    await reply.end(stub.report)


def outcome(call: Call, place: int) -> Done | Failed:
    """Return the result of an item, or its refusal."""
    item = call.items[place]
    body = msgspec.msgpack.decode(item.body)
    try:
        result = msgspec.json.encode(_result(call, item.scope, body))
    except ItemRefused as refused:
        return Failed(
            index=place, status=422, code=refused.code, detail=str(refused), retryable=False
        )
    return Done(index=place, result=result, rows=1, tokens=tokens(str(body)))


def _output(name: str, numbers: list[float]) -> Any:
    """Return another output of a text than the dense vector."""
    if name == "sparse":
        return {"sparse": {"indices": [*range(len(numbers))], "values": [*map(abs, numbers)]}}
    return {"multi_vector": [numbers, numbers[::-1]]}


def _result(call: Call, scope: str, body: Any) -> Any:
    """Return the result of an item; refuse the items that a real backend refuses."""
    decode = msgspec.msgpack.decode
    match call.task:
        case Task.EMBED:
            asked = decode(call.parameters, type=EmbedParameters)
            if (asked.dimensions or 1) > _MOST_DIMENSIONS:
                raise ItemRefused("bad_dimensions", "`dimensions` is too large")
            text = body["input"] if isinstance(body, dict) else body
            numbers = vector(scope, text, asked.dimensions, normalize=asked.normalize)
            return _output(body["output"], numbers) if body is not text else {"embedding": numbers}
        case Task.RERANK:
            query = decode(call.parameters, type=RerankParameters).query
            return {"score": score(scope, query, body)}
        case Task.ZERO_SHOT:
            parameters = decode(call.parameters, type=ZeroShotParameters)
            hypotheses(parameters)
            return {"labels": chosen(scope, body, parameters.labels)}
        case _:
            return _RESULTS[call.task](scope, body)


def _classified(scope: str, body: Any) -> Any:
    text = body if isinstance(body, str) else "|".join(body)
    return {"labels": labels(scope, text)}


def _chosen(_: str, body: Any) -> Any:
    check_choices(body["choices"])
    return {"choice": 0, "scores": [1.0 for _ in body["choices"]]}


def _tokens(_: str, body: Any) -> Any:
    counts = {"count": 1, "fits": True, "windows": 1}
    return counts | {"ids": [1], "tokens": [body[:1]], "offsets": [[0, len(body[:1])]]}


_RESULTS: dict[Task, Callable[[str, Any], Any]] = {
    Task.CLASSIFY: _classified,
    Task.ENTITIES: lambda scope, body: {"entities": [entity(scope, body)]},
    Task.ANSWER: lambda scope, body: {
        "answers": [span(scope, body["question"], body["context"])],
        "no_answer_score": score(scope, body["question"], body["context"]),
    },
    Task.GUARD: lambda *_: {"verdict": "allow", "findings": []},
    Task.CHOOSE: _chosen,
    Task.INFER: lambda scope, body: {"scope": scope, "item": body},
    Task.TOKENIZE: _tokens,
    Task.DETOKENIZE: lambda _, body: {"text": " ".join(map(str, body))},
}
