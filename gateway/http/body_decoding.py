"""Decodes JSON bodies. It ignores nulls of optional fields and a byte-order mark.

A body that fits is decoded once, at the speed of msgspec. Only a body that does not fit is read
again.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from sluicegate.gateway.config.spelling import closest

T = TypeVar("T")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NULL = "`null`"
_UNKNOWN = re.compile(r"unknown field `(.*?)`(?: - at `\$(.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[[^]]*\]")
_LISTS = inspect.ListType | inspect.VarTupleType


class BodyDecoder(Generic[T]):
    """Decodes bodies of one kind.

    A null of an optional field means that the field is left out.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode

    def __call__(self, raw: bytes) -> T:
        """Return the decoded body.

        Raises:
            UnknownField: it has a field that the kind does not have.
            ValidationError: it does not fit the kind.
            DecodeError: it is not JSON.
        """
        raw = raw.removeprefix(_BYTE_ORDER_MARK)
        try:
            return self._decode(raw)
        except msgspec.ValidationError as error:
            if _NULL in str(error):
                return convert_body(msgspec.json.decode(raw), self._kind)
            raise _explained(str(error), self._kind) from None


class UnknownField(msgspec.ValidationError):
    """Reports an unknown field; `known` is the name that was likely meant."""

    def __init__(self, reason: str, known: str | None) -> None:
        super().__init__(reason)
        self.known = known


def convert_body(values: object, kind: type[T]) -> T:
    """Return plain values as a `kind`, without nulls of optional fields.

    Raises:
        UnknownField: they have a field that the kind does not have.
        ValidationError: they do not fit the kind.
    """
    try:
        return msgspec.convert(without_nulls(values, kind), kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), kind) from error


def without_nulls(values: object, kind: Any) -> Any:
    """Return plain values without the nulls of fields that a `kind` may leave out.

    Free-form values keep theirs.
    """
    return _without_nulls(values, _type_of(kind))


def without_mark(raw: bytes) -> bytes:
    """Return JSON without the byte-order mark that some editors write before it."""
    return raw.removeprefix(_BYTE_ORDER_MARK)


@cache
def _type_of(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _without_nulls(value: Any, kind: inspect.Type) -> Any:
    if isinstance(value, dict):
        return _object_without_nulls(value, kind)
    if isinstance(value, list):
        for each in _alternatives(kind):
            if isinstance(each, _LISTS):
                return [_without_nulls(one, each.item_type) for one in value]
    return value


def _object_without_nulls(value: dict[str, Any], kind: inspect.Type) -> dict[str, Any]:
    for each in _alternatives(kind):
        if isinstance(each, inspect.DictType):
            return {name: _without_nulls(one, each.value_type) for name, one in value.items()}
        if isinstance(each, inspect.StructType):
            fields = _fields(each)
            return {
                name: _without_nulls(one, fields[name].type) if name in fields else one
                for name, one in value.items()
                if one is not None or name not in fields or fields[name].required
            }
    return value


def _explained(reason: str, kind: Any) -> msgspec.ValidationError:
    """Return the error of a body that does not fit. An unknown field gets the likely name."""
    found = _UNKNOWN.search(reason)
    if found is None:
        return msgspec.ValidationError(reason)
    inner = [_type_of(kind)]
    for step in _STEP.findall(found[2] or ""):
        inner = [below for each in inner for below in _below(each, step)]
    known = {name for each in inner for name in _fields(each)}
    return UnknownField(reason, closest(found[1], known))


def _below(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    """Yield the structs that a field may hold. Without a name, yield the structs of an element."""
    for each in _alternatives(kind):
        if step and isinstance(each, inspect.StructType):
            if step in (fields := _fields(each)):
                yield from _alternatives(fields[step].type)
        elif not step and isinstance(each, _LISTS):
            yield from _alternatives(each.item_type)
        elif not step and isinstance(each, inspect.DictType):
            yield from _alternatives(each.value_type)


def _alternatives(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _fields(kind: inspect.Type) -> Mapping[str, inspect.Field]:
    if not isinstance(kind, inspect.StructType):
        return {}
    return {field.encode_name: field for field in kind.fields}
