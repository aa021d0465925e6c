"""Lists the fields of usage events by what the gateway does with them.

`RequestEvent` and `RequestUsage` declare the fields.
"""

from typing import Final, get_type_hints

from gateway.types import EventField, RequestEvent, RequestUsage, RevisionUsage

_DECLARED: Final = {
    name: declared
    for name, kind in get_type_hints(RequestEvent, include_extras=True).items()
    for declared in getattr(kind, "__metadata__", ())
    if isinstance(declared, EventField)
}
KIND: Final = tuple(name for name, each in _DECLARED.items() if not each.is_discarded)
"""The fields that make the kind of a request. The sums of an hour keep different kinds apart."""
UNITS: Final = RequestUsage.__struct_fields__
"""The numbers of `RequestUsage`, which add up."""
SUMMED: Final = ("requests", *UNITS)
"""The numbers in a row of the ledger: the requests in the row, and the sums of their units."""
OUTCOMES: Final = tuple(name for name in RevisionUsage.__struct_fields__ if name in UNITS)
"""The units that are counted for each revision of a model with a traffic split."""
