"""Reads the example inputs of a model card, the `README.md` of a checkpoint.

A card has examples in two places: `widget` in its front matter, which the hub's page shows, and
Python code, in which texts are assigned to variables such as `sentences`. The code is parsed, and
only its literals are read; it is never run.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import yaml

FILE = "README.md"
_MOST_BYTES = 1 << 20
_FRONT = re.compile(r"\A---\r?\n(.*?)\r?\n---\r?\n", re.DOTALL)
_FENCE = "```"
_PYTHON = ("```python", "```py")
# The names that cards use, and what they mean.
_NAMES = {
    **dict.fromkeys(("sentences", "texts", "text", "sentence", "inputs"), "texts"),
    **dict.fromkeys(("query", "queries"), "queries"),
    **dict.fromkeys(("documents", "passages", "docs", "corpus"), "documents"),
    **dict.fromkeys(("pairs", "sentence_pairs"), "pairs"),
    **dict.fromkeys(("labels", "candidate_labels"), "labels"),
    **dict.fromkeys(("question", "context"), ""),
}


class CardInput(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one example of a card; `source` says in which place of the card it is.

    `queries` are ranked against `documents`. `labels` are those that a request names.
    """

    source: str
    texts: list[str] = []
    pairs: list[tuple[str, str]] = []
    queries: list[str] = []
    documents: list[str] = []
    labels: list[str] = []
    question: str = ""
    context: str = ""


def read_card(folder: Path) -> list[CardInput]:
    """Return the examples of a folder's card; none if there is no card, or no example in it.

    A card that cannot be read has no examples, because a card decides no result.
    """
    path = folder / FILE
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return []
    return [*_widgets(text), *_literals(text)]


def _widgets(text: str) -> Iterator[CardInput]:
    found = _FRONT.match(text)
    try:
        # This loader reads each scalar as a text, and merges no mappings.
        front = yaml.load(found[1], yaml.BaseLoader) if found else None  # noqa: S506 - it is safe
    except Exception:  # noqa: BLE001 - the loader raises many types, and the card is foreign
        return
    widgets = front.get("widget") if isinstance(front, dict) else None
    for widget in widgets if isinstance(widgets, list) else []:
        if isinstance(widget, dict):
            made = _of_widget(widget)
            if made is not None:
                yield made


def _of_widget(widget: dict[str, Any]) -> CardInput | None:
    source = f"`widget` in {FILE}"
    text, context = _text(widget.get("text")), _text(widget.get("context"))
    question = _text(widget.get("question")) or text
    first = _text(widget.get("source_sentence"))
    query = _text(widget.get("query"))
    documents = _texts(widget.get("documents") or widget.get("texts"))
    labels = widget.get("candidate_labels") or widget.get("labels")
    if isinstance(labels, str):
        labels = [label.strip() for label in labels.split(",")]
    if context and question:
        return CardInput(source=source, question=question, context=context)
    if query and documents:
        return CardInput(source=source, queries=[query], documents=documents)
    if first:
        return CardInput(source=source, texts=[first, *_texts(widget.get("sentences"))])
    if text and (pair := _text(widget.get("text_pair"))):
        return CardInput(source=source, pairs=[(text, pair)])
    return CardInput(source=source, texts=[text], labels=_texts(labels)) if text else None


def _literals(text: str) -> Iterator[CardInput]:
    """Yield what each block of Python code assigns to a known name."""
    for block in _blocks(text):
        try:
            tree = ast.parse(block)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # a card may show a console, or a part of a program
        values = dict(_assigned(tree))
        names = ", ".join(f"`{name}`" for name in values)
        fields: dict[str, Any] = {}
        for name, value in values.items():
            if field := _NAMES[name]:
                fields[field] = [*fields.get(field, ()), *value]
            elif value and isinstance(value[0], str):
                fields[name] = value[0]
        if fields.keys() - {"labels"}:
            pairs = [pair for pair in fields.pop("pairs", ()) if not isinstance(pair, str)]
            texts = {k: v for k, v in fields.items() if _is_plain(v)}
            yield CardInput(source=f"{names} in {FILE}", pairs=pairs, **texts)


def _blocks(text: str) -> Iterator[str]:
    """Yield the blocks of Python code."""
    block: list[str] | None = None
    for line in text.split("\n"):
        if block is None and line.rstrip() in _PYTHON:
            block = []
        elif block is not None and line.startswith(_FENCE):
            yield "\n".join(block)
            block = None
        elif block is not None:
            block.append(line)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, list[Any]]]:
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name = node.targets[0].id
        if name not in _NAMES:
            continue
        try:
            value = ast.literal_eval(node.value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        found = list(_items([value] if isinstance(value, str) else value))
        if found:
            yield name, found


def _items(value: object) -> Iterator[Any]:
    """Yield the texts of a list, and its pairs of texts."""
    for each in value if isinstance(value, list | tuple) else ():
        if _is_text(each):
            yield each
        elif isinstance(each, list | tuple) and [_is_text(part) for part in each] == [True, True]:
            yield tuple(each)


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a text that a request can carry, in UTF-8."""
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:
        return False


def _is_plain(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(each, str) for each in value)
    )


def _text(value: object) -> str:
    return value.strip() if _is_text(value) else ""


def _texts(values: object) -> list[str]:
    found = [_text(each) for each in values] if isinstance(values, list) else []
    return [each for each in found if each]
