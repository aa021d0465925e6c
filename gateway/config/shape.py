"""Converts values parsed from YAML to the structs of the configuration. Errors name the field."""

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar, get_args, get_origin

import msgspec

from sluicegate.gateway.config.spelling import closest
from sluicegate.gateway.config.tree import Path

T = TypeVar("T")
LARGEST_NUMBER = 2**63 - 1
_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "more than"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "less than"),
}
"""What the bounds of a type mean, and how errors name them."""


class SchemaViolation(Exception):
    """A value does not fit the document's schema. `path` says where the value is."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(detail)
        self.path = path
        self.detail = detail


class ConfigFinding(NamedTuple):
    """A problem of a value in the configuration document, and the path of this value.

    The value has the right type, but is not allowed.
    """

    path: Path
    detail: str


def shape(values: object, kind: type[T]) -> T:
    """Return `values` converted to `kind`.

    Raises:
        SchemaViolation: a value does not fit.
    """
    _inspect(values, kind, ())
    return msgspec.convert(values, kind)


def _inspect(value: object, kind: Any, path: Path) -> None:
    """Raise an error for the first violation in the order of the document.

    msgspec's own errors do not name the keys of mappings.
    """
    origin = get_origin(kind)
    if origin is UnionType:
        kind, origin = _member(value, kind, path), None
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        _inspect_struct(value, kind, path)
    elif origin is Annotated:
        if isinstance(value, int | float) and not isinstance(value, bool):
            _inspect_range(value, get_args(kind)[1:], path)
        _inspect(value, get_args(kind)[0], path)
    elif origin in (dict, tuple):
        for key, entry in _entries(value, origin, path):
            _inspect(entry, get_args(kind)[origin is dict], (*path, key))
    else:
        _inspect_scalar(value, kind, path)


def _entries(value: object, kind: Any, path: Path) -> Iterable[tuple[Any, object]]:
    return _mapping(value, path).items() if kind is dict else enumerate(_list(value, path))


def _inspect_scalar(value: object, kind: Any, path: Path) -> None:
    if kind is int and isinstance(value, int) and value > LARGEST_NUMBER:
        raise SchemaViolation(path, f"must be at most {LARGEST_NUMBER}")
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        detail = str(error)
        raise SchemaViolation(path, detail[0].lower() + detail[1:]) from error


def _inspect_struct(value: object, kind: type[msgspec.Struct], path: Path) -> None:
    entries = _mapping(value, path)
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, entry in entries.items():
        if key == kind.__struct_config__.tag_field:
            continue
        if key not in fields:
            raise SchemaViolation((*path, key), _unknown(key, list(fields)))
        _inspect(entry, fields[key].type, (*path, key))
    for name, field in fields.items():
        if field.required and name not in entries:
            raise SchemaViolation(path, f"the field `{name}` is missing")


def _member(value: object, kind: Any, path: Path) -> type[msgspec.Struct]:
    """Return the struct of a union whose tag `value` has."""
    by_tag = {each.__struct_config__.tag: each for each in get_args(kind)}
    field = get_args(kind)[0].__struct_config__.tag_field
    tag = _mapping(value, path).get(field)
    if tag is None:
        raise SchemaViolation(path, f"the field `{field}` is missing")
    if tag not in by_tag:
        meant = closest(str(tag), list(by_tag))
        hint = f"; did you mean `{meant}`?" if meant else f"; known: {', '.join(sorted(by_tag))}"
        raise SchemaViolation((*path, field), f"unknown `{field}`{hint}")
    found: type[msgspec.Struct] = by_tag[tag]
    return found


def _inspect_range(value: float, marks: tuple[msgspec.Meta, ...], path: Path) -> None:
    """Raise an error if a number is out of the range that the `marks` of its type declare."""
    bounds = {
        name: bound
        for mark in marks
        for name in _BOUNDS
        if (bound := getattr(mark, name)) is not None
    }
    is_number = isinstance(value, int) or math.isfinite(value)
    if not bounds or (is_number and all(_BOUNDS[name][0](value, bounds[name]) for name in bounds)):
        return
    rule = " and ".join([f"{_BOUNDS[name][1]} {bound}" for name, bound in bounds.items()])
    if bounds.keys() == {"ge", "le"}:
        rule = f"from {bounds['ge']} to {bounds['le']}"
    why = "".join(
        [f": {mark.extra['why']}" for mark in marks if mark.extra and "why" in mark.extra]
    )
    got = f"{value:g}" if isinstance(value, float) else value
    raise SchemaViolation(path, f"must be {rule}, got {got}{why}")


def _mapping(value: object, path: Path) -> Mapping[str, object]:
    if not isinstance(value, dict):
        _mismatch(path, "expected a mapping", value)
    return value


def _list(value: object, path: Path) -> list[object]:
    if not isinstance(value, list):
        _mismatch(path, "expected a list", value)
    return value


def _mismatch(path: Path, expected: str, value: object) -> NoReturn:
    got = "nothing" if value is None else f"`{type(value).__name__}`"
    raise SchemaViolation(path, f"{expected}, got {got}")


def _unknown(key: str, known: list[str]) -> str:
    meant = closest(key, known)
    hint = f"; did you mean `{meant}`?" if meant else f"; known: {', '.join(sorted(known))}"
    return f"unknown field `{key}`{hint}"
