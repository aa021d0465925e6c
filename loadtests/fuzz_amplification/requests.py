"""Makes requests that cause nearly the largest computation or answer possible for their size."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple  # Any: JSON

import msgspec

from loadtests.fuzz_dialects.routes import ROUTES, TENSOR_ROUTES, Asked, DialectRoute
from sluicegate.wire.protocol import Task

_MODELS = {
    Task.EMBED: "minilm",
    Task.RERANK: "minilm",
    Task.CLASSIFY: "sentiment",
    Task.ZERO_SHOT: "topics",
    Task.ENTITIES: "entities-demo",
}
# The demo models answer these only.
_ROUTES = [route for route in ROUTES if route.task in _MODELS]
# Dense texts: many tokens, many bytes in JSON, many entities, or nothing.
_PIECES = ("a ", ",", "é", "\u0001", "😀", '"', "word ", "Bob, ", "A. ", " ", "## ", "日本")
_COUNTS = (1, 2, 16, 256, 512, 2048, 4096)
_LENGTHS = (1, 40, 1_000, 4_000, 60_000, 1_000_000, 7_000_000)
_LABELS = (1, 2, 32, 256, 300)
_LABEL_LENGTHS = (3, 60, 4_000, 4_096, 4_097)
_TEMPLATES = ("{}", "x{}" + " " * 4_090, "{}" + " " * 4_096, "{}x" + " " * 6_000_000)
_LARGEST = 7_500_000


class AmplifiedRequest(NamedTuple):
    """A kind of request with its path and body; `tensors` is the same request for gRPC."""

    kind: str
    path: str
    body: bytes
    tensors: tuple[DialectRoute, Asked] | None = None


def amplified(seed: int, number: int) -> AmplifiedRequest:
    """Return request `number` of a seed."""
    chance = random.Random(f"amplification/{seed}/{number}")
    make = chance.choice((_of_a_dialect, _of_a_dialect, _zero_shot, _choose, _tokens, _ids))
    return make(chance, number)


def lines(seed: int, numbers: Iterator[int], count: int) -> bytes:
    """Return a batch file with `count` native requests, each of at most 200 kB."""
    found: list[bytes] = []
    for number in numbers:
        asked = amplified(seed, number)
        if asked.path.startswith("/v1/") and len(asked.body) < 200_000:
            line = {"custom_id": f"{number}", "method": "POST", "url": asked.path}
            found.append(msgspec.json.encode(line | {"body": msgspec.Raw(asked.body)}))
        if len(found) == count:
            break
    return b"\n".join(found)


def _choice(chance: random.Random, sizes: Sequence[int]) -> int:
    """Return one of the smaller half of `sizes`; in a tenth of the cases, one of all `sizes`."""
    return chance.choice(sizes if chance.random() < 0.1 else sizes[: len(sizes) // 2 + 1])


def _texts(chance: random.Random, number: int) -> list[str]:
    """Return distinct texts of at most 7.5 MB in total."""
    count, length = _choice(chance, _COUNTS), _choice(chance, _LENGTHS)
    length = min(length, _LARGEST // count)
    piece = chance.choice(_PIECES)
    text = (piece * (length // len(piece.encode()) + 1))[:length]
    return [f"{number}.{each} {text}" for each in range(count)]


def _labels(chance: random.Random) -> list[str]:
    count, length = _choice(chance, _LABELS), _choice(chance, _LABEL_LENGTHS)
    piece = chance.choice(_PIECES)
    return [f"{each}" + (piece * length)[: length - len(str(each))] for each in range(count)]


def _of_a_dialect(chance: random.Random, number: int) -> AmplifiedRequest:
    route = chance.choice(_ROUTES)
    asked = Asked(
        scope="",
        model=_MODELS[route.task],
        texts=_texts(chance, number),
        form=chance.choice(route.forms),
        query=chance.choice(_texts(chance, number)[:1]),
        names=_labels(chance),
    )
    path = route.path.replace("{model}", asked.model)
    body = msgspec.json.encode(route.body(asked))
    tensors = (route, asked) if route in TENSOR_ROUTES else None
    return AmplifiedRequest(route.name, path, body, tensors)


def _zero_shot(chance: random.Random, number: int) -> AmplifiedRequest:
    body = {
        "model": "topics",
        "input": _texts(chance, number),
        "labels": _labels(chance),
        "hypothesis_template": chance.choice(_TEMPLATES),
    }
    return _native("zero-shot", body)


def _choose(chance: random.Random, number: int) -> AmplifiedRequest:
    choices = _labels(chance)
    prompts = _texts(chance, number)[: max(1, _LARGEST // sum(map(len, choices)))]
    body = {
        "model": "topics",
        "input": [{"prompt": prompt, "choices": choices} for prompt in prompts[:64]],
    }
    return _native("choose", body)


def _tokens(chance: random.Random, number: int) -> AmplifiedRequest:
    texts = _texts(chance, number)
    if chance.random() < 0.5:
        body = msgspec.json.encode({"inputs": texts})
        return AmplifiedRequest("tei tokenize", "/tei/minilm/tokenize", body)
    return _native("tokenize", {"model": "minilm", "input": texts, "overlap": 10**6})


def _ids(chance: random.Random, number: int) -> AmplifiedRequest:
    ids = [chance.randrange(1000, 30_000)] * chance.choice((1, 1_000, 60_000))
    return _native("detokenize", {"model": "minilm", "ids": [ids, [number % 30_000]]})


def _native(task: str, body: dict[str, Any]) -> AmplifiedRequest:
    return AmplifiedRequest(f"native {task}", f"/v1/{task}", msgspec.json.encode(body))
