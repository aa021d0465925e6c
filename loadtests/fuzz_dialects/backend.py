"""Answers items as `answers` says: late at times, and in any order."""

import asyncio
import random
from typing import Any  # Any: the items of several tasks

import msgspec

from backends.protocol import (
    Call,
    Done,
    EmbedParameters,
    ModelInfo,
    RerankParameters,
    Task,
    ZeroShotParameters,
)
from loadtests.fuzz_dialects import answers
from loadtests.fuzz_http import backend
from testing.stub_backend import Reply, StubBackend, stub_model

MODELS = {
    "vectors": [Task.EMBED, Task.RERANK],
    "words": [Task.CLASSIFY],
    "topic": [Task.ZERO_SHOT],
    "people": [Task.ENTITIES],
}
SHARED = "-shared"
"""The end of the names of models whose answers all tenants share."""
MODERATION = {"negative": "harm"}
DOCUMENT_MODELS: dict[str, dict[str, Any]] = {
    "words": {"moderation": MODERATION},
    **{name + SHARED: {"scope": "shared"} for name in MODELS},
}
_PAUSES = (*(0.0,) * 12, 0.001, 0.005, 0.03)


def models() -> list[ModelInfo]:
    """Return all models: with answers for each tenant, with shared ones, and of the HTTP fuzzer."""
    own = [
        msgspec.structs.replace(
            stub_model(name + end), tasks=tasks, labels=["negative", "positive"]
        )
        for name, tasks in MODELS.items()
        for end in ("", SHARED)
    ]
    return own + backend.models()


async def answer(stub: StubBackend, call: Call, reply: Reply) -> None:
    """Answer the items of a call in any order; other models answer as for the HTTP fuzzer."""
    if call.model.removesuffix(SHARED) not in MODELS:
        await backend.answer(stub, call, reply)
        return
    places = list(range(len(call.items)))
    random.shuffle(places)
    middle = random.randint(0, len(places))
    for part in (places[:middle], places[middle:]):
        await asyncio.sleep(random.choice(_PAUSES))
        if part:
            await reply.send(*(_done(call, place) for place in part))
    await reply.end(stub.report)


def _done(call: Call, place: int) -> Done:
    item = call.items[place]
    text = msgspec.msgpack.decode(item.body)
    result = msgspec.json.encode(_result(call, item.scope, text))
    return Done(index=place, result=result, rows=1, tokens=answers.tokens(text))


def _result(call: Call, scope: str, text: Any) -> Any:
    decode = msgspec.msgpack.decode
    match call.task:
        case Task.EMBED:
            asked = decode(call.parameters, type=EmbedParameters)
            found = answers.vector(
                scope, text, dimensions=asked.dimensions, normalize=asked.normalize
            )
            return {"embedding": found}
        case Task.RERANK:
            query = decode(call.parameters, type=RerankParameters).query
            return {"score": answers.score(scope, query, text)}
        case Task.ZERO_SHOT:
            names = decode(call.parameters, type=ZeroShotParameters).labels
            return {"labels": answers.chosen(scope, text, names)}
        case Task.ENTITIES:
            return {"entities": [answers.entity(scope, text)]}
        case _:
            return {"labels": answers.labels(scope, text)}
