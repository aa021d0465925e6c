"""Answers like a backend, sometimes late and in any order; each result names tenant and text.

A result that was computed for another caller or text is thus recognizable in the answer.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any  # Any: the items of all tasks

import msgspec

from backends.algorithms.questions import check_choices, hypotheses
from backends.errors import ItemRefused
from loadtests.fuzz_dialects import answers
from testing.stub_backend import Reply, StubBackend, stub_model
from wire.protocol import (
    Call,
    Done,
    EmbedParameters,
    Failed,
    ModelInfo,
    RerankParameters,
    Task,
    ZeroShotParameters,
)

MODELS = {
    "vectors": [Task.EMBED, Task.RERANK],
    "words": [Task.CLASSIFY],
    "topic": [Task.ZERO_SHOT],
    "people": [Task.ENTITIES],
}
"""The models that the dialects ask for."""
SHARED = "-shared"
"""The suffix of the names of models whose answers all tenants share."""
MODERATION = {"negative": "harm"}
DOCUMENT_MODELS: dict[str, dict[str, Any]] = {
    "words": {"moderation": MODERATION},
    **{name + SHARED: {"scope": "shared"} for name in MODELS},
}
_DOCUMENTED = ("stub", "sentiment", "topics", "minilm", "entities-demo", "reviewer")
"""Models of every task, including the models in the examples of the customers' OpenAPI document."""
_PAUSES = (*(0.0,) * 12, 0.001, 0.005, 0.03)


def models() -> list[ModelInfo]:
    """Return all models: with answers for each tenant, with shared answers, and for every task."""
    own = [
        msgspec.structs.replace(
            stub_model(name + end), tasks=tasks, labels=["negative", "positive"]
        )
        for name, tasks in MODELS.items()
        for end in ("", SHARED)
    ]
    return own + [stub_model(name) for name in _DOCUMENTED]


async def answer(stub: StubBackend, call: Call, reply: Reply) -> None:
    """Answer the items of a call in random order."""
    places = list(range(len(call.items)))
    random.shuffle(places)
    middle = random.randint(0, len(places))
    for part in (places[:middle], places[middle:]):
        await asyncio.sleep(random.choice(_PAUSES))
        if part:
            await reply.send(*(_outcome(call, place) for place in part))
    await reply.end(stub.report)


def _outcome(call: Call, place: int) -> Done | Failed:
    item = call.items[place]
    body = msgspec.msgpack.decode(item.body)
    try:
        result = msgspec.json.encode(_result(call, item.scope, body))
    except ItemRefused as refused:
        return Failed(
            index=place, status=422, code=refused.code, detail=str(refused), retryable=False
        )
    return Done(index=place, result=result, rows=1, tokens=answers.tokens(str(body)))


def _result(call: Call, scope: str, body: Any) -> Any:
    """Return the result of an item; refuse the items that a real backend refuses."""
    decode = msgspec.msgpack.decode
    match call.task:
        case Task.EMBED:
            asked = decode(call.parameters, type=EmbedParameters)
            vector = answers.vector(
                scope, body, dimensions=asked.dimensions, normalize=asked.normalize
            )
            return {"embedding": vector}
        case Task.RERANK:
            query = decode(call.parameters, type=RerankParameters).query
            return {"score": answers.score(scope, query, body)}
        case Task.ZERO_SHOT:
            parameters = decode(call.parameters, type=ZeroShotParameters)
            hypotheses(parameters)
            return {"labels": answers.chosen(scope, body, parameters.labels)}
        case _:
            return _RESULTS[call.task](scope, body)


def _classified(scope: str, body: Any) -> Any:
    text = body if isinstance(body, str) else "|".join(body)
    return {"labels": answers.labels(scope, text)}


def _chosen(_: str, body: Any) -> Any:
    check_choices(body["choices"])
    return {"choice": 0, "scores": [1.0 for _ in body["choices"]]}


def _tokens(_: str, body: Any) -> Any:
    counts = {"count": 1, "fits": True, "windows": 1}
    return counts | {"ids": [1], "tokens": [body[:1]], "offsets": [[0, len(body[:1])]]}


_RESULTS: dict[Task, Callable[[str, Any], Any]] = {
    Task.CLASSIFY: _classified,
    Task.ENTITIES: lambda scope, body: {"entities": [answers.entity(scope, body)]},
    Task.CHOOSE: _chosen,
    Task.INFER: lambda scope, body: {"scope": scope, "item": body},
    Task.TOKENIZE: _tokens,
    Task.DETOKENIZE: lambda _, body: {"text": " ".join(map(str, body))},
}
