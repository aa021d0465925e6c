"""Lists the fields of usage events by what the ledger does with them.

`RequestEvent` and `RequestUsage` declare the fields.
"""

from typing import Final, TypeVar, get_type_hints

from sluicegate.gateway.types import (
    EventField,
    EventUnit,
    RequestEvent,
    RequestUsage,
    RevisionUsage,
)

_D = TypeVar("_D")


def _declared(owner: type, kind: type[_D]) -> dict[str, _D]:
    """Return the declarations of this `kind` in the annotations of `owner`, by field."""
    return {
        name: declared
        for name, annotation in get_type_hints(owner, include_extras=True).items()
        for declared in getattr(annotation, "__metadata__", ())
        if isinstance(declared, kind)
    }


_types: Final = get_type_hints(RequestEvent)
FIELDS: Final = _declared(RequestEvent, EventField)
"""The fields that have a column in `usage_events`."""
NUMBERS: Final = frozenset(name for name in FIELDS if _types[name] is int)
"""Those of `FIELDS` that are integers. The others are strings."""
KIND: Final = tuple(name for name, field in FIELDS.items() if not field.is_discarded)
"""The fields that make the kind of a request. The sums of an hour keep different kinds apart."""
DETAILS: Final = tuple(name for name, field in FIELDS.items() if field.is_discarded)
"""The fields that the roll-up of past hours discards."""
PUBLIC: Final = tuple(name for name, field in FIELDS.items() if field.is_public)
"""The fields that tenants may see."""
UNITS: Final = RequestUsage.__struct_fields__
"""The numbers of `RequestUsage`, which add up."""
ADDED_UNITS: Final = {name: unit.since for name, unit in _declared(RequestUsage, EventUnit).items()}
"""The version of the schema that adds each of `UNITS` that the first version lacks."""
SUMMED: Final = ("requests", *UNITS)
"""The numbers in a row of the ledger: the requests in the row, and the sums of their units."""
OUTCOMES: Final = tuple(name for name in RevisionUsage.__struct_fields__ if name in UNITS)
"""The units that are counted for each revision of a model with a traffic split."""
