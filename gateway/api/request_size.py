"""Bounds what a request expands to, and its largest possible answer, before any work is done.

Each input has a bound, but products of inputs do not: labels are put into a template for each
input, a query is read with each document, and each label returns in each answer. The sizes are
upper bounds in bytes, computed from the decoded body and the description of its model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET

from sluicegate.gateway.config.document import RequestConfig
from sluicegate.gateway.errors import ExpansionTooLarge
from sluicegate.gateway.http.byte_budget import LARGE
from sluicegate.gateway.types import InferenceRequest, ServedModel
from sluicegate.wire.protocol import (
    MAX_ENTITIES,
    MAX_LABELS,
    AnswerItem,
    AnswerParameters,
    ChooseItem,
    ClassifyParameters,
    EmbedParameters,
    EntitiesParameters,
    ModelInfo,
    RerankParameters,
    RowLimits,
    Task,
    TokenizeParameters,
    ZeroShotParameters,
    embed_output,
    most_windows,
)

SMALL_BYTES: Final = 1024
"""A body up to this size with one item and no labels cannot become large."""
_CHARGED_BYTES: Final = 64 * 1024
"""Limits on items charge one item for this many bytes."""
# Upper bounds in bytes of JSON: around an item's answer, around a label, a score, a number.
_ITEM, _LABEL, _SCORE, _NUMBER = 100, 48, 25, 15
# An entity without its text, and the least bytes of text that have an entity.
_ENTITY, _ENTITY_TEXT = 96, 2
# The most relations of a type in a window, the least bytes of a window's words, and the bytes of an
# end of a relation. A backend limits how much text the ends repeat.
_RELATIONS, _WINDOW, _RELATION_END = 19, 1024, 160
# A finding of a guard without its text, and the bytes of text that rarely have more than one.
_FINDING, _FINDING_TEXT = 256, 8
# An answer to a question, without its text.
_ANSWER = 96
# The most entities with a word in common, if one may be inside another.
_NESTED = 12
# A token: its number, its text (a byte may be written as `<0xE2>`), and its place without digits.
_TOKEN = 21
# Bytes of text for each byte of msgpack of a token's number.
_TEXT_OF_ID = 64
# An estimate: nobody knows the answer of a model owner's algorithm, or the number of words that a
# sparse vector has. Frames bound it in the end.
_OWN_ANSWER = 32 * 1024


class RequestSize(NamedTuple):
    """How large a request may become: what models read for it, and its answer."""

    expanded_bytes: int
    answer_bytes: int

    @property
    def held_bytes(self) -> int:
        """The bytes of its worker's memory that the request holds while it is answered."""
        total = self.expanded_bytes + self.answer_bytes
        return total if total > LARGE else 0

    def charged_items(self, items: int) -> int:
        """Return how many items limits charge: `items`, or one for each 64 KiB if that is more."""
        return max(items, (self.expanded_bytes + self.answer_bytes) // _CHARGED_BYTES)


class _Asked(NamedTuple):
    request: InferenceRequest
    info: ModelInfo | None
    texts: int
    """The bytes of all items."""
    bounds: RequestConfig


class _Product(NamedTuple):
    expanded: int
    answer: int
    what: str
    """The product in words."""


def size_of(
    request: InferenceRequest,
    served: ServedModel | None,
    *,
    bounds: RequestConfig,
    length: int,
    growth: float,
) -> RequestSize:
    """Return the size of a request whose body has `length` bytes to a `served` model.

    The route's answers are `growth` times as long as native ones.

    Raises:
        ExpansionTooLarge: the request, its template or a label exceeds a bound of the document.
    """
    texts = sum(map(len, request.items))
    info = None if served is None else served.info
    product = _PRODUCTS[request.task](_Asked(request, info, texts, bounds))
    # An answer may repeat everything that was sent: documents, words, names.
    answer = int(product.answer * growth) + len(request.items) * _ITEM + length
    size = RequestSize(texts + product.expanded, answer)
    if size.expanded_bytes > bounds.max_expanded_bytes:
        raise _too_large(
            f"{product.what} expand to {size.expanded_bytes:,} bytes",
            ("max_expanded_bytes", bounds.max_expanded_bytes),
        )
    if answer > bounds.max_answer_bytes:
        raise _too_large(
            f"{product.what} could have an answer of {answer:,} bytes",
            ("max_answer_bytes", bounds.max_answer_bytes),
        )
    return size


def _too_large(what: str, bound: tuple[str, int]) -> ExpansionTooLarge:
    name, most = bound
    return ExpansionTooLarge(
        f"{what}; at most {most:,} are allowed (`request.{name}`). Send less in each request."
    )


def _classify(asked: _Asked) -> _Product:
    labels = _labels(asked.info)
    most = _decode(asked.request.parameters, type=ClassifyParameters).top_k or len(labels)
    longest = max(_json_lengths(labels), default=0)
    each = min(most, len(labels)) * (_LABEL + longest)
    items = len(asked.request.items)
    return _Product(0, items * each, f"{_many(items, 'input')} x {_many(len(labels), 'label')}")


def _zero_shot(asked: _Asked) -> _Product:
    parameters = _decode(asked.request.parameters, type=ZeroShotParameters)
    labels, items = parameters.labels, len(asked.request.items)
    template = len(parameters.hypothesis_template.encode())
    lengths = _label_lengths(asked, labels)
    longest = max(lengths, default=0)
    if template > asked.bounds.max_template_bytes:
        raise _too_large(
            f"`hypothesis_template` has {template:,} bytes",
            ("max_template_bytes", asked.bounds.max_template_bytes),
        )
    hypotheses = len(labels) * template + sum(lengths)
    answer = sum(_json_lengths(labels)) + len(labels) * _LABEL
    what = (
        f"{_many(items, 'input')} x {_many(len(labels), 'label')} of up to {longest:,} bytes"
        f" in a template of {template:,} bytes"
    )
    return _Product(items * hypotheses, items * answer, what)


def _choose(asked: _Asked) -> _Product:
    expanded = answer = most = 0
    for item in map(_choose_item, asked.request.items):
        # More choices than a backend takes are refused before they are read.
        choices = min(len(item.choices), MAX_LABELS)
        expanded += choices * len(item.prompt.encode())
        answer += choices * _SCORE
        most = max(most, choices)
    what = f"{_many(len(asked.request.items), 'input')} x up to {_many(most, 'choice')}"
    return _Product(expanded, answer, what)


def _embed(asked: _Asked) -> _Product:
    numbers = (asked.info.dimensions if asked.info is not None else None) or 0
    numbers = min(
        numbers, _decode(asked.request.parameters, type=EmbedParameters).dimensions or numbers
    )
    items = asked.request.items
    longest = asked.info.max_tokens if asked.info is not None else 1
    vectors = sparse = 0
    for item, output in zip(items, map(embed_output, items), strict=True):
        sparse += output == "sparse"
        if output != "sparse":
            vectors += 1 if output == "dense" else min(len(item), longest)
    what = f"{_many(len(items), 'input')} x vectors of {_many(numbers, 'number')}"
    return _Product(0, vectors * numbers * _NUMBER + sparse * _OWN_ANSWER, what)


def _rerank(asked: _Asked) -> _Product:
    parameters = _decode(asked.request.parameters, type=RerankParameters)
    query, items = len(parameters.query.encode()), len(asked.request.items)
    what = f"{_many(items, 'document')} x a query of {query:,} bytes"
    return _Product(items * query, 0, what)


def _entities(asked: _Asked) -> _Product:
    parameters = _decode(asked.request.parameters, type=EntitiesParameters)
    what = f"the entities of {asked.texts:,} bytes of text"
    labels, items = parameters.labels, len(asked.request.items)
    if parameters.descriptions is not UNSET:
        _label_lengths(asked, [*parameters.descriptions.values()])
    related = 0
    if parameters.relations is not UNSET:
        relations = parameters.relations[:MAX_LABELS]
        _label_lengths(asked, relations)
        most = _RELATIONS * (items + asked.texts // _WINDOW)
        related = most * (2 * _RELATION_END * len(relations) + sum(_json_lengths(relations)))
        what = f"the entities and relations of {asked.texts:,} bytes of text"
        if labels is UNSET:
            return _Product(items * len(asked.request.parameters), related, what)
    if labels is UNSET:
        each = _ENTITY + max(_json_lengths(_labels(asked.info)), default=0)
        return _Product(0, asked.texts // _ENTITY_TEXT * each, what)
    labels = labels[:MAX_LABELS]
    _label_lengths(asked, labels)
    each = _ENTITY + max(_json_lengths(labels), default=0)
    copies = len(labels) if parameters.multi_label is True else 1
    copies *= 1 if parameters.flat is not False else _NESTED
    entities = min(asked.texts // _ENTITY_TEXT * copies, items * MAX_ENTITIES)
    expanded = items * len(asked.request.parameters)
    return _Product(expanded, entities * each + asked.texts * copies + related, what)


def _answer(asked: _Asked) -> _Product:
    parameters = _decode(asked.request.parameters, type=AnswerParameters)
    longest = asked.info.row_limits if asked.info is not None else RowLimits(1)
    expanded = answer = 0
    for item in map(_answer_item, asked.request.items):
        windows = most_windows(item, parameters, longest)
        expanded += (windows - 1) * len(item.question.encode())
        answer += parameters.top_k * (_ANSWER + len(item.context.encode()))
    what = f"{_many(len(asked.request.items), 'input')} x {_many(parameters.top_k, 'answer')}"
    return _Product(expanded, answer, what)


def _guard(asked: _Asked) -> _Product:
    what = f"the findings in {asked.texts:,} bytes of text"
    return _Product(0, asked.texts // _FINDING_TEXT * _FINDING, what)


def _infer(asked: _Asked) -> _Product:
    items = len(asked.request.items)
    return _Product(0, items * _OWN_ANSWER, _many(items, "input"))


def _tokenize(asked: _Asked) -> _Product:
    what = f"the tokens of {asked.texts:,} bytes of text"
    if _decode(asked.request.parameters, type=TokenizeParameters).counts_only:
        return _Product(0, 0, what)
    answer = sum(
        [length * (_TOKEN + 2 * len(str(length))) for length in map(len, asked.request.items)]
    )
    return _Product(0, answer, what)


def _detokenize(asked: _Asked) -> _Product:
    return _Product(0, asked.texts * _TEXT_OF_ID, f"the texts of {asked.texts:,} bytes of tokens")


def _label_lengths(asked: _Asked, labels: Sequence[str]) -> list[int]:
    """Return the bytes of each label of a request, or refuse one that is too long."""
    lengths = [len(label.encode()) for label in labels]
    longest = max(lengths, default=0)
    if longest > asked.bounds.max_label_bytes:
        raise _too_large(
            f"a label has {longest:,} bytes", ("max_label_bytes", asked.bounds.max_label_bytes)
        )
    return lengths


def _labels(info: ModelInfo | None) -> Sequence[str]:
    return (info.labels if info is not None else None) or ()


def _json_lengths(texts: Iterable[str]) -> Iterator[int]:
    return map(len, map(_encode, texts))


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


_encode, _decode = msgspec.json.encode, msgspec.msgpack.decode
_answer_item = msgspec.msgpack.Decoder(AnswerItem).decode
_choose_item = msgspec.msgpack.Decoder(ChooseItem).decode
_PRODUCTS: Final[dict[Task, Callable[[_Asked], _Product]]] = {
    Task.CLASSIFY: _classify,
    Task.ZERO_SHOT: _zero_shot,
    Task.CHOOSE: _choose,
    Task.EMBED: _embed,
    Task.RERANK: _rerank,
    Task.ENTITIES: _entities,
    Task.ANSWER: _answer,
    Task.GUARD: _guard,
    Task.INFER: _infer,
    Task.TOKENIZE: _tokenize,
    Task.DETOKENIZE: _detokenize,
}
