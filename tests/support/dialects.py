"""Sets up the API for tests of dialects, and compares its entry points."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sluicegate.wire.guards import FormatDetector, GuardConfig, RouterConfig, RuleConfig
from sluicegate.wire.protocol import EmbedOutput, Task, embed_output
from tests.support.api import Api
from tests.support.documents import conforms, documents
from tests.support.entry_points import EntryPoint
from tests.support.inference_scene import INFO

_RESULTS = {
    Task.CLASSIFY: b'{"labels":[{"label":"good","score":0.75},{"label":"bad","score":0.25}]}',
    Task.ZERO_SHOT: b'{"labels":[{"label":"x","score":0.6},{"label":"y","score":0.4}]}',
    Task.TOKENIZE: (
        b'{"count":1,"fits":true,"windows":1,"ids":[7],"tokens":["a"],"offsets":[[0,1]]}'
    ),
    Task.DETOKENIZE: b'{"text":"a"}',
    Task.ANSWER: (
        b'{"answers":[{"answer":"me","score":0.5,"start":3,"end":5},'
        b'{"answer":"you","score":0.25,"start":0,"end":3}],"no_answer_score":0.375}'
    ),
    Task.GUARD: (
        b'{"verdict":"redact","findings":[{"detector":"contacts","action":"redact","label":"EMAIL",'
        b'"score":1.0,"start":9,"end":24}]}'
    ),
    Task.ENTITIES: (
        b'{"entities":[{"label":"PER","score":0.9,"text":"Sarah","start":11,"end":16}]}'
    ),
}


# The guard of the example in the OpenAPI document.
GUARDS = {
    "chat": GuardConfig(
        model="chat-detectors",
        detectors=(FormatDetector(name="contacts", formats=("email",), action="redact"),),
    )
}
# The router of the examples in the OpenAPI document.
ROUTERS = {
    "chat": RouterConfig(
        model="chat-detectors",
        detectors=GUARDS["chat"].detectors,
        rules=(RuleConfig(detector="contacts", target="REASONING"),),
        default="SIMPLE",
    )
}
# The outputs of a text.
OUTPUTS: dict[EmbedOutput, bytes] = {
    "dense": b'{"embedding":[0.25,-0.5]}',
    "sparse": b'{"sparse":{"indices":[3,7],"values":[0.5,0.25]}}',
    "multi_vector": b'{"multi_vector":[[0.25,-0.5],[-0.5,0.25]]}',
}


def documented(path: str, answer: Any) -> None:
    """Check that an answer has the form that the OpenAPI document states for its route."""
    document = documents()["customers"]
    told = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]
    conforms(document, told["schema"], answer)


def serve_models(api: Api) -> Api:
    """Serve a model for each task of dialects; a document is as good as it is long."""
    kinds = {
        "minilm": [Task.EMBED, Task.RERANK],
        "topics": [Task.ZERO_SHOT],
        "entities": [Task.ENTITIES],
        "gliner": [Task.ENTITIES],
        "splade": [Task.EMBED],
        "answers": [Task.ANSWER],
        "chat-detectors": [Task.GUARD],
    }
    for name, tasks in kinds.items():
        api.scene.models.infos[name] = msgspec.structs.replace(
            INFO, name=name, tasks=tasks, shows_tokens=True
        )

    def result(body: bytes) -> bytes:
        task = api.scene.runner.works[-1].task
        if task is Task.EMBED:
            return OUTPUTS[embed_output(body)]
        return _RESULTS.get(task) or b'{"score":%.2f}' % (len(body) / 100)

    api.scene.runner.result = result
    return api


def sent(line: str, headers: Sequence[str], body: bytes) -> bytes:
    """Return the bytes of a request."""
    head = "\r\n".join([f"{line} HTTP/1.1", *headers, f"Content-Length: {len(body)}"])
    return f"{head}\r\n\r\n".encode() + body


async def answer_alike(
    requests: Sequence[bytes], tier: str, prepare: Callable[[Api], object] = serve_models
) -> tuple[list[bytes], EntryPoint]:
    """Return the first answers to requests that both entry points must answer with the same bytes.

    Each is sent as a miss, as hits of the tier, and as what is then replayed; and the fast path.
    """
    points = application, fast_path = EntryPoint(fast=False), EntryPoint(fast=True)
    for point in points:
        prepare(point.api)
        point.api.scene.cache.has_memory = tier == "memory"
    answers = []
    for request in list(requests) * 4:
        expected, found = await application.send(request), await fast_path.send(request)
        assert found == expected
        assert fast_path.events() == application.events()
        answers.append(expected)
    return answers[: len(requests)], fast_path
