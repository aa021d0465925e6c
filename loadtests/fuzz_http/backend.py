"""A backend whose answers say whose they are: run as a process, it prints its URL.

Each result has the shape that its task has. A label holds the scope that the gateway computes for
(a tenant) and the text, so that an answer to another caller or another text is seen as such.
"""

import argparse
import asyncio
from typing import Any  # Any: the items of seven tasks

import msgspec

from backends.protocol import Call, Done, Task
from tests.support.stub_backend import Reply, StubBackend


def label(scope: str, text: str) -> str:
    """Return the label of a text that is asked in `scope`."""
    return f"{scope}|{text}"


async def answer(stub: StubBackend, call: Call, reply: Reply) -> None:
    """Answer every item at once."""
    done = []
    for index, item in enumerate(call.items):
        body = msgspec.msgpack.decode(item.body)
        result = msgspec.json.encode(_result(call.task, item.scope, body))
        done.append(Done(index=index, result=result, rows=1, tokens=4))
    await reply.send(*done)
    await reply.end(stub.report)


def _result(task: Task, scope: str, body: Any) -> Any:
    match task:
        case Task.CLASSIFY | Task.ZERO_SHOT:
            text = body if isinstance(body, str) else "|".join(body)
            return {"labels": [{"label": label(scope, text), "score": 1.0}]}
        case Task.CHOOSE:
            return {"choice": 0, "scores": [1.0 for _ in body["choices"]]}
        case Task.RERANK:
            return {"score": 0.5}
        case Task.EMBED:
            return {"embedding": [0.0, 1.0]}
        case Task.ENTITIES:
            found = {"label": "X", "score": 1.0, "text": body[:1], "start": 0, "end": len(body[:1])}
            return {"entities": [found]}
        case Task.INFER:
            return {"scope": scope, "item": body}


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend_id")
    parser.add_argument("region")
    options = parser.parse_args()
    stub = StubBackend(backend_id=options.backend_id, region=options.region, behaviour=answer)
    async with stub:
        print(stub.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
