"""Finds the texts in the body of a request to a language model, and in that of its answer.

The bodies are those of OpenAI's chat completions, completions and embeddings, and of Anthropic's
messages.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from sluicegate.gateway.dialects.guards.hooks import HookTexts

# It keeps numbers as they are written, and all values of a name that an object has twice.
_parse = partial(json.loads, strict=False, parse_int=str, parse_float=str, object_pairs_hook=list)
# The names of texts, and of what has texts.
_TEXTS = frozenset(
    (
        "choices",
        "content",
        "input",
        "message",
        "messages",
        "prediction",
        "prompt",
        "reasoning",
        "reasoning_content",
        "refusal",
        "suffix",
        "system",
        "text",
        "thinking",
    )
)
_CALLS = frozenset(("function_call", "tool_calls"))
_DEFINITIONS = frozenset(("functions", "response_format", "tools"))


def strings(value: Any) -> Iterator[str]:
    """Yield the texts, names and numbers of a JSON value, in their order."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            one = list(one.items())
        if isinstance(one, list | tuple):
            waiting += reversed(one)
        elif isinstance(one, str):
            yield one.encode(errors="ignore").decode()  # a half of a surrogate pair is no text
        elif isinstance(one, int | float) and not isinstance(one, bool):
            yield str(one)


def call_text(name: Any, arguments: Any) -> str:
    """Return the name of a call, and the names and values of its arguments, in lines.

    Arguments that are a text are read as JSON, as the tool reads them.
    """
    try:
        read = _parse(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        read = arguments  # No tool can read it.
    return "\n".join([*strings(name), *strings(read)]).strip("\n")


def texts_of(body: Any) -> HookTexts:
    """Return the texts of a body.

    Raises:
        RecursionError: it is nested too deeply.
    """
    texts: list[str] = []

    def keep(text: str) -> str:
        texts.append(text)
        return text

    walk = _Walk(keep)
    walk(body)
    return HookTexts(
        texts=texts, calls=walk.calls, definitions=walk.definitions, has_tokens=walk.has_tokens
    )


def with_texts(body: Any, texts: Iterator[str]) -> Any:
    """Return a copy of a body with other texts, in the order of `texts_of`.

    The copy has no probabilities of tokens, which would tell the former texts.
    """
    return _Walk(lambda _: next(texts))(body)


class _Walk:
    """Copies a body with changed texts, and collects what cannot be changed."""

    def __init__(self, change: Callable[[str], str]) -> None:
        self._change = change
        self.calls: list[str] = []
        self.definitions: list[str] = []
        self.has_tokens = False

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._change(value)
        if isinstance(value, list):
            return [self(one) for one in value]
        if isinstance(value, dict):
            return self._object(value)
        self.has_tokens |= isinstance(value, int) and not isinstance(value, bool)
        return value

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        copy = dict(value)
        for key, one in value.items():
            if key == "input" and isinstance(one, dict):  # of Anthropic's `tool_use`
                self.calls.append(call_text(value.get("name"), one))
            elif key in _TEXTS:
                copy[key] = self(one)
            elif key in _CALLS:
                self.calls += [text_of_call(call) for call in _listed(one)]
            elif key in _DEFINITIONS:
                self.definitions += ["\n".join(strings(each)) for each in _listed(one)]
            elif key == "logprobs" and isinstance(one, dict):
                copy[key] = None  # It repeats the text.
        return copy


def text_of_call(call: Any) -> str:
    """Return the text of a call of any kind: all that it has, if its arguments are elsewhere."""
    function = call.get("function", call) if isinstance(call, dict) else call
    if isinstance(function, dict) and "arguments" in function:
        return call_text(function.get("name"), function["arguments"])
    return call_text(None, call)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
