"""Answers as a backend does, with tenant and text in each label.

Each result has the shape of its task. A label holds the scope that the gateway passes (a tenant)
and the text, which shows answers to another caller or another text.
"""

from collections.abc import Callable
from typing import Any  # Any: the items of all tasks

import msgspec

from backends.algorithms.questions import check_choices, hypotheses
from backends.errors import ItemRefused
from backends.protocol import Call, Done, Failed, ModelInfo, Task, ZeroShotParameters
from testing.stub_backend import Reply, StubBackend, stub_model

MODELS = ("stub", "sentiment", "topics", "minilm", "entities-demo", "reviewer")
"""They include all models in the examples of the customers' OpenAPI document."""


def models() -> list[ModelInfo]:
    """Return all models, each of which takes every task."""
    return [stub_model(name) for name in MODELS]


def label(scope: str, text: str) -> str:
    """Return the label of a text asked for in `scope`."""
    return f"{scope}|{text}"


async def answer(stub: StubBackend, call: Call, reply: Reply) -> None:
    """Answer every item at once."""
    done: list[Done | Failed] = []
    for index, item in enumerate(call.items):
        body = msgspec.msgpack.decode(item.body)
        try:
            _check(call, body)
        except ItemRefused as refused:
            done.append(
                Failed(
                    index=index, status=422, code=refused.code, detail=str(refused), retryable=False
                )
            )
            continue
        result = msgspec.json.encode(_RESULTS[call.task](item.scope, body))
        done.append(Done(index=index, result=result, rows=1, tokens=4))
    await reply.send(*done)
    await reply.end(stub.report)


def _check(call: Call, body: Any) -> None:
    """Refuse calls that a real backend refuses."""
    if call.task is Task.CHOOSE:
        check_choices(body["choices"])
    elif call.task is Task.ZERO_SHOT:
        hypotheses(msgspec.msgpack.decode(call.parameters, type=ZeroShotParameters))


def _labels(scope: str, body: Any) -> Any:
    text = body if isinstance(body, str) else "|".join(body)
    return {"labels": [{"label": label(scope, text), "score": 1.0}]}


def _entities(_: str, body: Any) -> Any:
    found = {"label": "X", "score": 1.0, "text": body[:1], "start": 0, "end": len(body[:1])}
    return {"entities": [found]}


def _tokens(_: str, body: Any) -> Any:
    counts = {"count": 1, "fits": True, "windows": 1}
    return counts | {"ids": [1], "tokens": [body[:1]], "offsets": [[0, len(body[:1])]]}


_RESULTS: dict[Task, Callable[[str, Any], Any]] = {
    Task.CLASSIFY: _labels,
    Task.ZERO_SHOT: _labels,
    Task.CHOOSE: lambda _, body: {"choice": 0, "scores": [1.0 for _ in body["choices"]]},
    Task.RERANK: lambda _, __: {"score": 0.5},
    Task.EMBED: lambda _, __: {"embedding": [0.0, 1.0]},
    Task.ENTITIES: _entities,
    Task.INFER: lambda scope, body: {"scope": scope, "item": body},
    Task.TOKENIZE: _tokens,
    Task.DETOKENIZE: lambda _, body: {"text": " ".join(map(str, body))},
}
