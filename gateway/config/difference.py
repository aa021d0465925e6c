"""Compares two documents, or two parts of documents, field by field."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sluicegate.gateway.config.load import without_defaults

_IDENTITIES = (("id",), ("name",), ("model", "since"))
"""The fields that identify an element of a list, wherever it is in the list."""


class FieldChange(
    msgspec.Struct, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}
):
    """Holds a field's value before and after a change. A missing field has the value `UNSET`.

    If a value is a section, fields that have their defaults are left out of it.
    """

    path: str
    before: Any | msgspec.UnsetType = msgspec.UNSET
    after: Any | msgspec.UnsetType = msgspec.UNSET


def find_changes(before: Any, after: Any, path: str = "") -> Iterator[FieldChange]:
    """Yield the fields that differ, in the order in which their types declare them.

    Two lists are compared element by element. Elements correspond if they have the same identity:
    the same id, the same name, or the same model and date. If elements have changed their order, a
    further change lists the identities in the old and in the new order.
    """
    if before == after:
        return
    if isinstance(before, msgspec.Struct) and type(before) is type(after):
        for name in before.__struct_fields__:
            one, other = getattr(before, name), getattr(after, name)
            yield from find_changes(one, other, f"{path}.{name}" if path else name)
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _changes_by_key(before, after, f"{path}.{{}}")
    elif (first := _by_identity(before)) is not None and (
        second := _by_identity(after)
    ) is not None:
        yield from _changes_by_key(first, second, f"{path}[{{}}]")
        kept = [name for name in first if name in second]
        if kept != [name for name in second if name in first]:
            yield FieldChange(path=path, before=list(first), after=list(second))
    else:
        yield FieldChange(path=path, before=shown(before), after=shown(after))


def shown(value: Any) -> Any:
    """Return a value as plain data for operators. Fields that have their defaults are left out."""
    return msgspec.to_builtins(without_defaults(value))


def _changes_by_key(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str
) -> Iterator[FieldChange]:
    for name in dict.fromkeys([*before, *after]):
        place = path.format(name)
        if name not in after:
            yield FieldChange(path=place, before=shown(before[name]))
        elif name not in before:
            yield FieldChange(path=place, after=shown(after[name]))
        else:
            yield from find_changes(before[name], after[name], place)


def _by_identity(values: Any) -> dict[str, Any] | None:
    """Return the elements of a list by their identity, or `None` if they have no identity."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return None
    for names in _IDENTITIES:
        if all(isinstance(one, msgspec.Struct) and _has(one, names) for one in values):
            found = {" ".join(str(getattr(one, name)) for name in names): one for one in values}
            if len(found) == len(values):
                return found
    return None


def _has(value: msgspec.Struct, names: Sequence[str]) -> bool:
    return set(names) <= set(value.__struct_fields__)
