"""Reads the docstrings below the fields of structs from their source. Python does not keep them."""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import msgspec


def field_descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the description of each field that has one, those of base classes included.

    `described_by` of a struct names another one, whose fields of the same names are described.
    """
    like = getattr(struct, "described_by", None)
    found = {} if like is None else field_descriptions(like)
    for part in reversed(struct.__mro__):
        if issubclass(part, msgspec.Struct) and part is not msgspec.Struct:
            found |= _module_fields(part.__module__).get(part.__qualname__, {})
    return found


@cache
def _module_fields(module: str) -> dict[str, dict[str, str]]:
    """Return the described fields of the classes at the top of `module`."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: dict(_fields(each)) for each in tree.body if isinstance(each, ast.ClassDef)}


def _fields(struct: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(struct.body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            yield field.target.id, inspect.cleandoc(text.value.value)
