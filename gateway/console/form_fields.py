"""Reads the fields of a submitted form."""

from itertools import islice

from sluicegate.gateway.console.access import AnyRequest
from sluicegate.gateway.console.forms import Fields
from sluicegate.gateway.errors import InvalidRequest

_MOST_FIELDS = 500


async def fields_of(request: AnyRequest) -> Fields:
    """Return the values of each field, in the order of the form.

    Raises:
        InvalidRequest: a field is a file.
    """
    form = await request.form()
    fields: dict[str, list[str]] = {}
    for name, value in islice(form.multi_items(), _MOST_FIELDS):
        if not isinstance(value, str):
            raise InvalidRequest(f"`{name}` must be text")
        fields.setdefault(name, []).append(value)
    return fields
