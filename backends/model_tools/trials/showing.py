"""Shows results of examples to a person, and the request that gives them over HTTP."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from sluicegate.backends.model_tools.trials.examples import AnsweredExample, Example
from sluicegate.wire.protocol import AnswerItem, ChooseItem, EmbedItem, Task

_MOST_TEXT, _MOST_SHOWN, _MOST_NUMBERS = 60, 4, 4


def describe_results(answered: AnsweredExample) -> list[str]:
    """Return the lines that show the results of an example."""
    example, results = answered.example, answered.results
    shown = [f"{example.task} {_asked(example)}({example.source})"]
    if example.task is Task.RERANK:
        pairs = sorted(
            zip(example.items, results, strict=True),
            key=lambda pair: -pair[1].get("score", float("-inf")),
        )
        return [*shown, *(f"  {_result(result)} {quote(item)}" for item, result in pairs)]
    for item, result in zip(example.items, results, strict=True):
        shown.append(f"  {quote(item)}: {_result(result)}")
    return [*shown, *_cosines(example, results)]


def request_body(example: Example, model: str) -> dict[str, Any]:
    """Return the body of a request for the example, for the route `/v1/` with the task's name."""
    items = example.items
    if example.task is Task.RERANK:
        return {"model": model, **example.parameters, "documents": items}
    body = {"model": model, "input": msgspec.to_builtins(items), **example.parameters}
    if isinstance(items[0], EmbedItem):
        body |= {"input": [item.input for item in items], "outputs": [items[0].output]}
    return body


def curl(example: Example, model: str) -> str:
    """Return a command for a shell that sends the example to the system that `up` starts.

    `up` keeps its address and a key in its data directory.
    """
    body = json.dumps(request_body(example, model), ensure_ascii=False).replace("'", "'\\''")
    return (
        f'curl -sS "$(cat .sluicegate/gateway-url)/v1/{example.task}" '
        '-H "Authorization: Bearer $(cat .sluicegate/demo-key)" '
        f"-H 'Content-Type: application/json' -d '{body}'"
    )


def quote(item: Any) -> str:
    """Return an item in quotation marks, cut if it is long, on one line."""
    if isinstance(item, AnswerItem):
        return f"{quote(item.question)} in {quote(item.context)}"
    if isinstance(item, ChooseItem):
        return quote(item.prompt)
    if isinstance(item, EmbedItem):
        return quote(item.input)
    if not isinstance(item, str):
        return " and ".join(quote(part) for part in item)
    text = " ".join(item.split())
    return f'"{text}"' if len(text) <= _MOST_TEXT else f'"{text[: _MOST_TEXT - 3]}..."'


def _asked(example: Example) -> str:
    """Return the query or the labels that all items of an example share."""
    shared = example.parameters.get("query")
    if shared is not None:
        return f"{quote(shared)} "
    labels = example.parameters.get("labels")
    return f"{', '.join(labels)} " if labels else ""


def _result(result: dict[str, Any]) -> str:
    if "error" in result:
        return str(result["error"])
    if "labels" in result:
        best = result["labels"][:_MOST_SHOWN]
        return ", ".join(f"{each['label']} {each['score']:.4f}" for each in best)
    if "entities" in result:
        found = [f"{e['text']} ({e['label']} {e['score']:.2f})" for e in result["entities"]]
        rest = len(found) - _MOST_SHOWN
        shown = ", ".join(found[:_MOST_SHOWN]) or "no entity"
        return f"{shown} and {rest} more" if rest > 0 else shown
    if "answers" in result:
        found = [f"{quote(each['answer'])} {each['score']:.4f}" for each in result["answers"]]
        return ", ".join(found) or "no answer"
    if "choice" in result:
        return f"choice {result['choice']}, {result['scores'][result['choice']]:.4f}"
    return f"{result['score']:.4f}" if "score" in result else _vectors(result)


def _vectors(result: dict[str, Any]) -> str:
    if "sparse" in result:
        return f"{len(result['sparse']['indices'])} weights"
    if "multi_vector" in result:
        return f"{len(result['multi_vector'])} vectors"
    vector = result["embedding"]
    first = ", ".join(f"{number:.3f}" for number in vector[:_MOST_NUMBERS])
    return f"[{first}, ...] of {len(vector)} numbers"


def _cosines(example: Example, results: Sequence[dict[str, Any]]) -> list[str]:
    """Return how similar the first text is to the others, if the results are vectors."""
    vectors = [result.get("embedding") for result in results]
    if not vectors or vectors[0] is None or None in vectors:
        return []
    return [
        f"  cosine {sum(a * b for a, b in zip(vectors[0], vector or (), strict=True)):.4f} of the "
        f"first text and {quote(item)}"
        for vector, item in zip(vectors[1:], example.items[1:], strict=True)
    ]
