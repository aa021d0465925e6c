"""Defines TEI's bodies of `tokenize` and `decode`."""

from itertools import accumulate, islice
from typing import Any, Final

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.schemas import Body, DetokenizeBody, TokenizeBody, texts_in_tokens
from sluicegate.gateway.dialects.hugging_face_tasks import TaskInputs
from sluicegate.gateway.dialects.stored_results import encoded_list, text_in, tokens_in
from sluicegate.gateway.types import Answer
from sluicegate.wire.protocol import TokenId

_AT_ONCE: Final = 4096
"""The most tokens that are encoded in one call. The number is limited because encoding holds the
GIL."""
_encode = msgspec.json.encode


class TeiTokenResult(msgspec.Struct, frozen=True, kw_only=True):
    """A token in TEI's format. `start` and `stop` are byte offsets in the text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiTokenizeInputs(TaskInputs, frozen=True, kw_only=True):
    """Show the tokens of texts, as in TEI's API."""

    inputs: str | list[str]
    """A text, or a list of texts."""
    add_special_tokens: bool = True
    """Whether to include tokens that the tokenizer adds to each text."""
    prompt_name: None = None
    """Must be `null`, because prompts are not supported."""

    @override
    def items(self) -> list[Any]:
        return self.inputs if isinstance(self.inputs, list) else [self.inputs]

    @override
    def native(self, model: str) -> Body:
        return TokenizeBody(
            model=model, input=self.items(), add_special_tokens=self.add_special_tokens
        )

    @override
    def write(self, answer: Answer) -> bytes:
        texts = zip(self.items(), answer.outcomes, strict=True)
        written = bytearray(b"[")
        for text, outcome in texts:
            _write_tokens(written, text, outcome.result)
        written[-1:] = b"]"
        return bytes(written)


class TeiDecodeInputs(TaskInputs, frozen=True, kw_only=True):
    """Turn tokens into texts, as in TEI's API."""

    ids: list[TokenId | list[TokenId]]
    """The token ids of a text, or a list of such lists."""
    skip_special_tokens: bool = True
    """Whether to omit tokens that the tokenizer adds to each text."""

    @override
    def items(self) -> list[Any]:
        return texts_in_tokens(self.ids, "ids")

    @override
    def native(self, model: str) -> Body:
        return DetokenizeBody(
            model=model, ids=self.ids, skip_special_tokens=self.skip_special_tokens
        )

    @override
    def write(self, answer: Answer) -> bytes:
        return encoded_list(text_in(outcome.result) for outcome in answer.outcomes)


def _write_tokens(written: bytearray, text: str, result: bytes) -> None:
    """Append the tokens of a text to `written`, as a JSON list and a comma.

    To save memory, at most `_AT_ONCE` tokens exist as Python objects at a time.
    """
    found = tokens_in(result)
    places = [*accumulate((len(character.encode()) for character in text), initial=0)]
    columns = zip(found.ids, found.tokens, found.offsets, strict=True)
    shown = (
        TeiTokenResult(id=number, text=token, special=True, start=None, stop=None)
        if place is None
        else TeiTokenResult(
            id=number,
            text=text[place[0] : place[1]],
            special=False,
            start=places[place[0]],
            stop=places[place[1]],
        )
        for number, token, place in columns
    )
    written += b"["
    while part := [*islice(shown, _AT_ONCE)]:
        written += _encode(part)[1:-1] + b","
    if found.ids:
        written.pop()
    written += b"],"
