"""Lists the routes of all dialects, with the body and the reader of each, and speaks gRPC.

`read` translates the answers of all dialects into the form that `expected` returns.
"""

import base64
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple  # Any: JSON, and messages, whose classes are made at run time

import grpc
import msgspec

from loadtests.fuzz_dialects import backend
from loadtests.fuzz_http.expect import UnexpectedResponse
from sluicegate.gateway.api.answers import SCORE_DECIMALS
from sluicegate.gateway.rpc.messages import MessageTable
from sluicegate.wire.protocol import Task

_TEMPLATE = "This text is about {}."


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A question that every dialect can ask."""

    scope: str
    model: str
    texts: list[str]
    dimensions: int | None = None
    form: str = "float"
    query: str = ""
    names: list[str] = []

    def expected(self, task: Task) -> Any:
        """Return the right answer to a task, in the common form."""
        match task:
            case Task.EMBED:
                return [_in_form(numbers, self.form) for numbers in self.vectors()]
            case Task.RERANK:
                scores = [backend.score(self.scope, self.query, text) for text in self.texts]
                return _best_first(scores)
            case Task.ZERO_SHOT:
                return [_pairs(backend.chosen(self.scope, t, self.names)) for t in self.texts]
            case Task.ENTITIES:
                return _entities([backend.entity(self.scope, text)] for text in self.texts)
            case Task.ANSWER:
                return [_span(backend.span(self.scope, self.query, text)) for text in self.texts]
            case _:
                return [_pairs(backend.labels(self.scope, text)) for text in self.texts]

    def vectors(self) -> list[list[float]]:
        """Return the vector of each text."""
        return [backend.vector(self.scope, text, self.dimensions) for text in self.texts]

    def tokens(self) -> int:
        """Return the tokens of all texts."""
        return sum(map(backend.tokens, self.texts))


def _in_form(numbers: list[float], form: str) -> Any:
    """Return a vector as JSON in one of the forms of docs/api.md."""
    if form == "float":
        return numbers
    if form == "base64":
        return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
    if form == "int8":
        most = max(map(abs, numbers))
        return [round(number * (127 / most)) for number in numbers]
    bits = "".join("1" if number > 0 else "0" for number in numbers)
    return [int(bits[at : at + 8].ljust(8, "0"), 2) for at in range(0, len(bits), 8)]


Fields = dict[str, Any]


class DialectRoute(NamedTuple):
    """How to ask a route, and how to read its answer."""

    name: str
    task: Task
    path: str
    """The path; it may contain `{model}`."""
    body: Callable[[Asked], Fields]
    read: Callable[[Any, Asked], Any]
    """Returns the results in the answer. Raises `UnexpectedResponse` if another part of the answer
    is wrong."""
    forms: tuple[str, ...] = ("float",)


def same(found: object, expected: object) -> None:
    """Raise `UnexpectedResponse` if the two values differ."""
    if found != expected:
        raise UnexpectedResponse(f"{found} in place of {expected}")


def _pairs(labels: list[Fields]) -> list[tuple[str, float]]:
    return [(one["label"], one["score"]) for one in labels]


def _labels(found: Any, _: Asked) -> Any:
    return [_pairs(labels) for labels in found]


def _native_labels(found: Any, asked: Asked) -> Any:
    return [_pairs(one["labels"]) for one in _results(found, asked)]


def _as_is(found: Any, _: Asked) -> Any:
    return found


def _entities(found: Iterable[list[Fields]]) -> list[tuple[Any, ...]]:
    return [_entity(one) for each in found for one in each]


def _entity(one: Fields) -> tuple[Any, ...]:
    label = one["label"] if "label" in one else one["entity_group"]
    return label, one["score"], one.get("text", one.get("word")), one["start"], one["end"]


def _span(one: Fields) -> tuple[Any, ...]:
    return one["answer"], one["score"], one["start"], one["end"]


def _extracted(found: Any, _: Asked) -> list[tuple[Any, ...]]:
    same(found["total_entities"], len(found["entities"]))
    names = ("suggested_label", "score", "value", "start_position", "end_position")
    return [tuple(one[name] for name in names) for one in found["entities"]]


def _best_first(scores: Iterable[float]) -> list[tuple[int, float]]:
    """Return the documents with their scores, best first; scores are rounded after sorting."""
    ranked = sorted(enumerate(scores), key=lambda one: (-one[1], one[0]))
    return [(index, round(score, SCORE_DECIMALS)) for index, score in ranked]


def _ranked(found: list[Fields], name: str = "score") -> list[tuple[int, float]]:
    return [(one["index"], one[name]) for one in found]


def _without_none(**fields: Any) -> Fields:
    return {name: value for name, value in fields.items() if value is not None}


def _native(asked: Asked) -> Fields:
    form = {"base64": {"encoding_format": "base64"}, "float": {}}
    more = form.get(asked.form, {"output_dtype": asked.form})
    return _without_none(model=asked.model, input=asked.texts, dimensions=asked.dimensions) | more


def _results(payload: Any, asked: Asked) -> list[Fields]:
    usage, count = payload["usage"], len(asked.texts)
    same(usage["hit"] + usage["collapsed"] + usage["computed"], count)
    same((usage["items"], usage["failed"]), (count, 0))
    same(payload["model"], asked.model)
    results: list[Fields] = payload["results"]
    return results


def _openai(asked: Asked) -> Fields:
    return _without_none(
        model=asked.model,
        input=asked.texts,
        dimensions=asked.dimensions,
        encoding_format=asked.form,
        user="a",
    )


def _openai_vectors(payload: Any, asked: Asked) -> Any:
    tokens = asked.tokens()
    same(payload["usage"], {"prompt_tokens": tokens, "total_tokens": tokens})
    same(payload["model"], asked.model)
    same([one["index"] for one in payload["data"]], list(range(len(asked.texts))))
    return [one["embedding"] for one in payload["data"]]


def _moderated(payload: Any, asked: Asked) -> Any:
    """Return the labels with the scores of the moderation categories."""
    (category,) = backend.MODERATION.values()
    scores = [one["category_scores"][category] for one in payload["results"]]
    both = [backend.labels(asked.scope, text) for text in asked.texts]
    return [
        _pairs([one, other | {"score": s}]) for (one, other), s in zip(both, scores, strict=True)
    ]


def _cohere(asked: Asked) -> Fields:
    return _without_none(
        model=asked.model,
        texts=asked.texts,
        output_dimension=asked.dimensions,
        embedding_types=["float", asked.form],
        input_type="search_query",
    )


def _cohere_vectors(payload: Any, asked: Asked) -> Any:
    same(payload["texts"], asked.texts)
    same(payload["meta"]["billed_units"], {"input_tokens": asked.tokens()})
    same(payload["embeddings"]["float"], asked.vectors())
    return payload["embeddings"][asked.form]


def _cohere_ranked(payload: Any, _: Asked) -> Any:
    same(payload["meta"]["billed_units"], {"search_units": 1})
    return _ranked(payload["results"], "relevance_score")


def _cohere_labels(payload: Any, asked: Asked) -> Any:
    found = payload["classifications"]
    same([one["input"] for one in found], asked.texts)
    same(payload["meta"]["billed_units"], {"classifications": len(found)})
    return [[(name, s["confidence"]) for name, s in one["labels"].items()] for one in found]


def _similarities(payload: Any, asked: Asked) -> Any:
    """Return the vectors, if the answer has their dot products."""
    first, *others = asked.vectors()
    products = [sum(a * b for a, b in zip(first, other, strict=True)) for other in others]
    same(payload, products)
    return [first, *others]


def _query(asked: Asked) -> Fields:
    return {"model": asked.model, "query": asked.query, "documents": asked.texts}


def _texts(asked: Asked) -> Fields:
    return _without_none(inputs=asked.texts, dimensions=asked.dimensions)


def _sentences(asked: Asked) -> Fields:
    return {"inputs": {"source_sentence": asked.texts[0], "sentences": asked.texts[1:]}}


def _candidates(asked: Asked) -> Fields:
    more = {"candidate_labels": asked.names, "hypothesis_template": _TEMPLATE}
    return {"inputs": asked.texts, "parameters": more}


def _types(asked: Asked) -> Fields:
    return {"inputs": asked.texts, "parameters": {"candidate_labels": asked.names}}


def _questions(asked: Asked) -> list[Fields]:
    return [{"question": asked.query, "context": text} for text in asked.texts]


def _tensors(asked: Asked, **shared: list[str]) -> Fields:
    inputs = {"TEXT": (asked.texts, 1)} | {n: (rows, len(rows)) for n, rows in shared.items()}
    parameters = {} if asked.dimensions is None else {"dimensions": asked.dimensions}
    return {
        "inputs": [
            {"name": name, "datatype": "BYTES", "shape": [len(all_) // row, row], "data": all_}
            for name, (all_, row) in inputs.items()
        ],
        "parameters": parameters,
    }


def _output(payload: Any, asked: Asked, name: str) -> list[Any]:
    """Return the rows of an output; a row of one value is that value."""
    same(payload["model_name"], asked.model)
    (found,) = [one for one in payload["outputs"] if one["name"] == name]
    count, row = found["shape"]
    same((count, len(found["data"])), (len(asked.texts), count * row))
    data = found["data"]
    return data if row == 1 else [data[at : at + row] for at in range(0, len(data), row)]


def _best_labels(payload: Any, asked: Asked) -> Any:
    """Return the best labels of the answer, followed by the other expected labels."""
    best = [_output(payload, asked, name) for name in ("LABEL", "SCORE")]
    expected = [_pairs(backend.labels(asked.scope, text))[1:] for text in asked.texts]
    return [[pair, *others] for pair, others in zip(zip(*best, strict=True), expected, strict=True)]


def _scored(payload: Any, asked: Asked) -> Any:
    rows = [zip(asked.names, row, strict=True) for row in _output(payload, asked, "SCORES")]
    return [sorted(row, key=lambda one: -one[1]) for row in rows]


_TENSORS = "/v2/models/{model}/infer"
_FORMS = ("float", "base64")
_MANY_FORMS = (*_FORMS, "int8", "ubinary")
_E, _C, _R = Task.EMBED, Task.CLASSIFY, Task.RERANK
_Z, _N, _A = Task.ZERO_SHOT, Task.ENTITIES, Task.ANSWER
EXTRACT = "/gliner/{model}/v1/extract"
ROUTES: tuple[DialectRoute, ...] = (
    DialectRoute("native embed", _E, "/v1/embed", _native,
                 lambda found, asked: [one["embedding"] for one in _results(found, asked)],
                 _MANY_FORMS),
    DialectRoute("openai embeddings", _E, "/v1/embeddings", _openai, _openai_vectors, _FORMS),
    DialectRoute("cohere embed", _E, "/v2/embed", _cohere, _cohere_vectors, _MANY_FORMS),
    DialectRoute("hf model", _E, "/models/{model}/pipeline/feature-extraction", _texts, _as_is),
    DialectRoute("hf of an owner", _E, "/models/acme/{model}", _texts, _as_is),
    DialectRoute("hf similarity", _E, "/models/{model}", _sentences, _similarities),
    DialectRoute("tei embed", _E, "/tei/{model}/embed", _texts, _as_is),
    DialectRoute("tei similarity", _E, "/tei/{model}/similarity", _sentences, _similarities),
    DialectRoute("native classify", _C, "/v1/classify", _native, _native_labels),
    DialectRoute("openai moderations", _C, "/v1/moderations",
                 lambda asked: {"model": asked.model, "input": asked.texts}, _moderated),
    DialectRoute("cohere classify", _C, "/v1/classify",
                 lambda asked: {"model": asked.model, "inputs": asked.texts}, _cohere_labels),
    DialectRoute("hf labels", _C, "/models/{model}", _texts, _labels),
    DialectRoute("tei predict", _C, "/tei/{model}/predict",
                 lambda asked: {"inputs": [[text] for text in asked.texts]}, _labels),
    DialectRoute("native rerank", _R, "/v1/rerank", _query,
                 lambda found, asked: _ranked(_results(found, asked))),
    DialectRoute("cohere rerank", _R, "/v2/rerank", _query, _cohere_ranked),
    DialectRoute("hf ranking", _R, "/models/{model}",
                 lambda asked: {"inputs": {"query": asked.query, "texts": asked.texts}},
                 lambda found, _: _ranked(found)),
    DialectRoute("tei rerank", _R, "/tei/{model}/rerank",
                 lambda asked: {"query": asked.query, "texts": asked.texts},
                 lambda found, _: _ranked(found)),
    DialectRoute("native zero-shot", _Z, "/v1/zero-shot",
                 lambda asked: {"model": asked.model, "input": asked.texts, "labels": asked.names},
                 _native_labels),
    DialectRoute("hf zero-shot", _Z, "/models/{model}", _candidates, _labels),
    DialectRoute("native entities", _N, "/v1/entities", _native,
                 lambda found, asked: _entities(o["entities"] for o in _results(found, asked))),
    DialectRoute("hf entities", _N, "/models/{model}", _texts, lambda found, _: _entities(found)),
    DialectRoute("hf labelled entities", _N, "/models/{model}", _types,
                 lambda found, _: _entities(found)),
    DialectRoute("gliner labelled entities", _N, EXTRACT,
                 lambda asked: {"text": asked.texts[0], "labels": asked.names, "flat_ner": True},
                 _extracted),
    DialectRoute("native answer", _A, "/v1/answer",
                 lambda asked: {"model": asked.model, "input": _questions(asked)},
                 lambda found, asked: [_span(o["answers"][0]) for o in _results(found, asked)]),
    DialectRoute("hf answer", _A, "/models/{model}",
                 lambda asked: {"inputs": _questions(asked)},
                 lambda found, _: [_span(one) for one in found]),
    DialectRoute("tensors embed", _E, _TENSORS, _tensors,
                 lambda found, asked: _output(found, asked, "EMBEDDING")),
    DialectRoute("tensors classify", _C, _TENSORS, _tensors, _best_labels),
    DialectRoute("tensors rerank", _R, _TENSORS,
                 lambda asked: _tensors(asked, QUERY=[asked.query]),
                 lambda found, asked: _best_first(_output(found, asked, "SCORE"))),
    DialectRoute("tensors zero-shot", _Z, _TENSORS,
                 lambda asked: _tensors(asked, LABELS=asked.names), _scored),
    DialectRoute("tensors answer", _A, _TENSORS,
                 lambda asked: _tensors(asked, QUESTION=[asked.query]),
                 lambda found, asked: [
                     _span(msgspec.json.decode(row)[0]) for row in _output(found, asked, "ANSWERS")
                 ]),
    DialectRoute("tensors labelled entities", _N, _TENSORS,
                 lambda asked: _tensors(asked, LABELS=asked.names),
                 lambda found, asked: _entities(
                     map(msgspec.json.decode, _output(found, asked, "ENTITIES")))),
    DialectRoute("tensors entities", _N, _TENSORS, _tensors,
                 lambda found, asked: _entities(
                     map(msgspec.json.decode, _output(found, asked, "ENTITIES")))),
)  # fmt: skip
TENSOR_ROUTES = tuple(route for route in ROUTES if route.path == _TENSORS)
METHOD = "/inference.GRPCInferenceService/ModelInfer"
_PATIENCE = 60.0
_MESSAGES = MessageTable()


def infer(channel: grpc.Channel, message: Any, key: str, request_id: str) -> Any:
    """Start a call with this message, and return its future."""
    start = channel.unary_unary(
        METHOD,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=_MESSAGES["ModelInferResponse"].FromString,
    )
    metadata = (("authorization", f"Bearer {key}"), ("x-request-id", request_id))
    return start.future(message, metadata=metadata, timeout=_PATIENCE)


def tensor_message(route: DialectRoute, asked: Asked, unique: str) -> Any:
    """Return the gRPC message of a request to a route of tensors."""
    body = route.body(asked)
    return _MESSAGES["ModelInferRequest"](
        model_name=asked.model,
        id=unique,
        parameters={name: {"int64_param": value} for name, value in body["parameters"].items()},
        inputs=[
            {
                "name": one["name"],
                "datatype": one["datatype"],
                "shape": one["shape"],
                "contents": {"bytes_contents": [text.encode() for text in one["data"]]},
            }
            for one in body["inputs"]
        ],
    )


def payload_of(message: Any) -> dict[str, Any]:
    """Return an answer in the form that it has over HTTP."""
    pairs = zip(message.outputs, message.raw_output_contents, strict=True)
    return {
        "model_name": message.model_name,
        "outputs": [
            {"name": one.name, "shape": list(one.shape), "data": _data(one.datatype, raw)}
            for one, raw in pairs
        ],
    }


def _data(datatype: str, raw: bytes) -> list[Any]:
    if datatype == "FP32":
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    texts, at = list[str](), 0
    while at < len(raw):  # each text is stored after its length
        (size,) = struct.unpack_from("<I", raw, at)
        texts.append(raw[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return texts
