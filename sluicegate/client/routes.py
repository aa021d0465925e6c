"""Builds the call of each route; the functions have the names of the OpenAPI document.

Both clients have a method for each function here. The gateway checks the arguments.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict
from urllib.parse import quote

import msgspec

from sluicegate.client.calls import Call
from sluicegate.client.results import (
    Answer,
    Choice,
    DecodedText,
    Embedding,
    Entities,
    GuardAnswer,
    JsonResult,
    Labels,
    Liveness,
    Model,
    ModelList,
    PastRequest,
    PastRequestList,
    RankedDocument,
    Readiness,
    RotatedKey,
    RouteAnswer,
    Spans,
    Tokens,
    UsageReport,
)

NumberType = Literal["float", "float16", "int8", "uint8", "binary", "ubinary"]
EmbedOutput = Literal["dense", "sparse", "multi_vector"]
OnError = Literal["fail", "continue"]


class Prompt(TypedDict):
    """Is an item of `choose`."""

    prompt: str
    choices: Sequence[str]


class Question(TypedDict):
    """Is an item of `answer`."""

    question: str
    context: str


def classify(
    model: str,
    texts: str | Sequence[str | tuple[str, str]],
    *,
    top_k: int | None = None,
    function: Literal["softmax", "sigmoid", "none"] | None = None,
    truncate: bool = True,
    on_error: OnError = "fail",
) -> Call[Answer[Labels]]:
    """Classify texts, or pairs of texts, with a trained classifier."""
    fields = {"model": model, "input": texts, "top_k": top_k, "function": function}
    return _infer("/v1/classify", Answer[Labels], fields, truncate, on_error)


def zero_shot(
    model: str,
    texts: str | Sequence[str],
    *,
    labels: Sequence[str],
    multi_label: bool | None = None,
    hypothesis_template: str | None = None,
    truncate: bool = True,
    on_error: OnError = "fail",
) -> Call[Answer[Labels]]:
    """Classify texts with your own labels."""
    fields = {
        "model": model,
        "input": texts,
        "labels": labels,
        "multi_label": multi_label,
        "hypothesis_template": hypothesis_template,
    }
    return _infer("/v1/zero-shot", Answer[Labels], fields, truncate, on_error)


def choose(
    model: str,
    items: Prompt | Sequence[Prompt],
    *,
    truncate: bool = True,
    on_error: OnError = "fail",
) -> Call[Answer[Choice]]:
    """Find the best choice for each prompt: `{"prompt": ..., "choices": [...]}`."""
    fields = {"model": model, "input": items}
    return _infer("/v1/choose", Answer[Choice], fields, truncate, on_error)


def rerank(
    model: str,
    query: str,
    documents: Sequence[str],
    *,
    instruction: str | None = None,
    top_n: int | None = None,
    return_documents: bool | None = None,
    weights: Mapping[EmbedOutput, float] | None = None,
    truncate: bool = True,
    on_error: OnError = "fail",
) -> Call[Answer[RankedDocument]]:
    """Sort documents by their relevance for a query, best first."""
    fields = {
        "model": model,
        "query": query,
        "instruction": instruction,
        "documents": documents,
        "top_n": top_n,
        "return_documents": return_documents,
        "weights": weights,
    }
    return _infer("/v1/rerank", Answer[RankedDocument], fields, truncate, on_error)


def entities(
    model: str,
    texts: str | Sequence[str],
    *,
    aggregation: Literal["none", "simple", "first", "average", "max"] | None = None,
    labels: Sequence[str] | None = None,
    threshold: float | None = None,
    flat: bool | None = None,
    multi_label: bool | None = None,
    relations: Sequence[str] | None = None,
    descriptions: Mapping[str, str] | None = None,
    truncate: bool = True,
    on_error: OnError = "fail",
) -> Call[Answer[Entities]]:
    """Find named entities in texts, and relations of the types `relations`.

    `labels` are the types of entities. Only some models find types that you name. `descriptions`
    say what these types mean.
    """
    fields = {
        "model": model,
        "input": texts,
        "aggregation": aggregation,
        "labels": labels,
        "threshold": threshold,
        "flat": flat,
        "multi_label": multi_label,
        "relations": relations,
        "descriptions": descriptions,
    }
    return _infer("/v1/entities", Answer[Entities], fields, truncate, on_error)


def answer(
    model: str,
    items: Question | Sequence[Question],
    *,
    top_k: int | None = None,
    max_answer_tokens: int | None = None,
    max_row_tokens: int | None = None,
    overlap: int | None = None,
    align_to_words: bool | None = None,
    truncate: bool = True,
    on_error: OnError = "fail",
) -> Call[Answer[Spans]]:
    """Find the answers to questions in texts: `{"question": ..., "context": ...}`."""
    fields = {
        "model": model,
        "input": items,
        "top_k": top_k,
        "max_answer_tokens": max_answer_tokens,
        "max_row_tokens": max_row_tokens,
        "overlap": overlap,
        "align_to_words": align_to_words,
    }
    return _infer("/v1/answer", Answer[Spans], fields, truncate, on_error)


def embed(
    model: str,
    texts: str | Sequence[str],
    *,
    normalize: bool | None = None,
    dimensions: int | None = None,
    prompt_name: str | None = None,
    output_dtype: NumberType | None = None,
    outputs: Sequence[EmbedOutput] | None = None,
    input_type: Literal["query", "document"] | None = None,
    pool_factor: int | None = None,
    return_tokens: bool | None = None,
    truncate: bool = True,
    on_error: OnError = "fail",
) -> Call[Answer[Embedding]]:
    """Compute the vectors of texts; `outputs` names the kinds of vectors."""
    fields = {
        "model": model,
        "input": texts,
        "normalize": normalize,
        "dimensions": dimensions,
        "prompt_name": prompt_name,
        "output_dtype": output_dtype,
        "outputs": outputs,
        "input_type": input_type,
        "pool_factor": pool_factor,
        "return_tokens": return_tokens,
    }
    return _infer("/v1/embed", Answer[Embedding], fields, truncate, on_error)


def infer(
    model: str,
    inputs: Sequence[Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    truncate: bool = True,
    on_error: OnError = "fail",
) -> Call[Answer[JsonResult]]:
    """Run a model's own algorithm on JSON items."""
    fields = {"inputs": inputs, "parameters": parameters}
    path = f"/v1/infer/{_segment('model', model)}"
    return _infer(path, Answer[JsonResult], fields, truncate, on_error)


def tokenize(
    model: str,
    texts: str | Sequence[str],
    *,
    counts_only: bool | None = None,
    add_special_tokens: bool | None = None,
    overlap: int | None = None,
    truncate: bool = True,
    on_error: OnError = "fail",
) -> Call[Answer[Tokens]]:
    """Return the tokens of texts and their number, without truncation. This is not billed."""
    fields = {
        "model": model,
        "input": texts,
        "counts_only": counts_only,
        "add_special_tokens": add_special_tokens,
        "overlap": overlap,
    }
    return _infer("/v1/tokenize", Answer[Tokens], fields, truncate, on_error)


def detokenize(
    model: str,
    ids: Sequence[int] | Sequence[Sequence[int]],
    *,
    skip_special_tokens: bool | None = None,
    truncate: bool = True,
    on_error: OnError = "fail",
) -> Call[Answer[DecodedText]]:
    """Return the texts of one or several lists of token ids. This is not billed."""
    fields = {"model": model, "ids": ids, "skip_special_tokens": skip_special_tokens}
    return _infer("/v1/detokenize", Answer[DecodedText], fields, truncate, on_error)


def guard(
    name: str, texts: str | Sequence[str], *, pieces: bool = False, restore: bool = False
) -> Call[GuardAnswer]:
    """Judge texts with a guard of the gateway's configuration. `name` is the guard.

    With `pieces`, `texts` are the pieces so far of one text that grows. With `restore`, the answer
    has the original text of each placeholder.
    """
    fields = {"input": texts, "pieces": pieces or None, "restore": restore or None}
    return _infer(f"/v1/guard/{_segment('name', name)}", GuardAnswer, fields)


def route(name: str, texts: str | Sequence[str]) -> Call[RouteAnswer]:
    """Choose a target for texts with a router of the gateway's configuration. `name` is the router.

    A target is a name, such as that of a language model.
    """
    return _infer(f"/v1/route/{_segment('name', name)}", RouteAnswer, {"input": texts})


def list_models() -> Call[ModelList]:
    """Return the models that the key may use."""
    return Call(method="GET", path="/v1/models", kind=ModelList)


def get_model(model: str) -> Call[Model]:
    """Return one model."""
    return Call(method="GET", path=f"/v1/models/{_segment('model', model)}", kind=Model)


def get_usage(
    *,
    since: str | None = None,
    until: str | None = None,
    group_by: str | Sequence[str] = (),
    bucket: Literal["day", "hour"] | None = None,
) -> Call[UsageReport]:
    """Return the tenant's usage and cost between two dates or times; this month by default.

    `group_by` is one or several of `model` (the default), `day`, `key`, `task`, `backend_region`
    and the other names that the gateway's API lists.
    """
    groups = group_by if isinstance(group_by, str) else ",".join(group_by)
    query = [("from", since), ("to", until), ("group_by", groups), ("bucket", bucket)]
    given = tuple((name, value) for name, value in query if value)
    return Call(method="GET", path="/v1/usage", query=given, kind=UsageReport)


def get_request(request_id: str) -> Call[PastRequest]:
    """Return the outcome of an earlier request, by the `request_id` of its answer or error."""
    path = f"/v1/requests/{_segment('request_id', request_id)}"
    return Call(method="GET", path=path, kind=PastRequest)


def list_requests(*, client_id: str) -> Call[PastRequestList]:
    """Return the earlier requests to which you gave this id, newest first."""
    query = (("client_id", client_id),)
    return Call(method="GET", path="/v1/requests", query=query, kind=PastRequestList)


def rotate_key(*, former_valid_for: float | None = None) -> Call[RotatedKey]:
    """Give the key a new secret.

    The present secret stays valid for `former_valid_for` seconds, or for a day by default. If the
    answer was lost, call this again. Then only the present secret and the newest one are valid.
    """
    given = {} if former_valid_for is None else {"former_valid_for": former_valid_for}
    body = msgspec.json.encode(given)
    return Call(method="POST", path="/v1/keys/rotate", body=body, kind=RotatedKey)


def is_live() -> Call[Liveness]:
    """Check that the gateway's process answers; needs no key."""
    return Call(method="GET", path="/health/live", kind=Liveness)


def is_ready() -> Call[Readiness]:
    """Check whether the gateway can answer requests, and what is missing; needs no key."""
    return Call(method="GET", path="/health/ready", kind=Readiness, accept=(200, 503))


def _infer(
    path: str,
    kind: type[Answer[Any]],
    fields: Mapping[str, Any],
    truncate: bool = True,  # noqa: FBT001, FBT002 - always passed on as it is
    on_error: OnError = "fail",
) -> Call[Any]:
    """Return a call whose body has no fields with default values."""
    body = {name: value for name, value in fields.items() if value is not None}
    _check_texts(body)
    if not truncate:
        body["truncate"] = False
    if on_error != "fail":
        body["on_error"] = on_error
    return Call(method="POST", path=path, body=msgspec.json.encode(body), kind=kind)


def _segment(name: str, value: str) -> str:
    """Return `value` as an encoded segment of a path.

    Raises:
        ValueError: the value would lead to another route.
    """
    if value in {"", ".", ".."}:
        raise ValueError(f"`{name}` cannot be {value!r}")
    return quote(value, safe="")


def _check_texts(value: Any) -> None:
    """Refuse bytes, which would be sent as base64 texts.

    Raises:
        TypeError: `value` contains bytes.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("texts must be `str`; decode bytes first")
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for one in value:
        if not isinstance(one, str):
            _check_texts(one)
