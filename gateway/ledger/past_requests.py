"""Finds recorded requests by their own id, or by the id that the caller gave them."""

import re
from collections.abc import Collection
from typing import Any

from sqlalchemy import Row, select

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.batch_types import FAILED
from sluicegate.gateway.ledger.store import Store, to_datetime
from sluicegate.gateway.ledger.types import PastRequest
from sluicegate.gateway.ledger.usage_fields import PUBLIC, UNITS
from sluicegate.gateway.types import ID_DIGITS, RequestUsage

_events = schema.usage_events
_MOST = 100
_ANY = re.compile(r"[A-Za-z0-9_-]{1,110}")
_FORM = re.compile(rf"[A-Za-z0-9_]{{1,100}}[0-9a-f]{{{ID_DIGITS}}}")


def find_request(
    store: Store, tenant: str, request_id: str, *, models: Collection[str] | None = None
) -> PastRequest | None:
    """Return the recorded request with this id.

    Return `None` if no request has this id, if another tenant sent it, or if its model is not in
    `models`.

    One row can hold a run: several requests whose ids are consecutive numbers. The row has the id
    of the first request. But each line of a batch job has its own row. If the line failed, an `f`
    follows the request's id in the row.
    """
    if not _ANY.fullmatch(request_id):
        return None
    query = select(_events).limit(1)
    if _FORM.fullmatch(request_id):
        first = request_id[:-ID_DIGITS] + "0" * ID_DIGITS
        query = query.where(_events.c.id <= request_id, _events.c.id >= first)
        query = query.order_by(_events.c.id.desc())
    else:
        query = query.where(_events.c.id.in_((request_id, request_id + FAILED)))
        query = query.order_by(_events.c.id)
    with store.reading() as connection:
        row = connection.execute(query).first()
    if row is None or row.tenant != tenant or (models is not None and row.model not in models):
        return None
    if row.id not in {request_id, request_id + FAILED} and not _is_among(request_id, row):
        return None
    return _request(request_id, row)


def find_requests(
    store: Store, tenant: str, client_id: str, *, models: Collection[str] | None = None
) -> list[PastRequest]:
    """Return the tenant's requests with this `client_id`, at most 100, newest first.

    If `models` is set, only requests for these models are returned.
    """
    query = select(_events).where(_events.c.tenant == tenant, _events.c.client_id == client_id)
    query = query.where(schema.HAS_CLIENT_ID).order_by(_events.c.time.desc()).limit(_MOST)
    if models is not None:
        query = query.where(_events.c.model.in_(models))
    with store.reading() as connection:
        return [_request(row.id, row) for row in connection.execute(query)]


def _request(request_id: str, row: Row[Any]) -> PastRequest:
    """Return the request of this id from its row. Only sums are kept of several in one row."""
    used = RequestUsage(**{name: getattr(row, name) for name in UNITS})
    return PastRequest(
        id=request_id,
        time=to_datetime(row.time),
        usage=used if row.requests == 1 else None,
        **{name: getattr(row, name) for name in PUBLIC},
    )


def _is_among(request_id: str, row: Row[Any]) -> bool:
    """Return whether the run in `row` contains the request `request_id`."""
    if len(row.id) != len(request_id) or not _FORM.fullmatch(row.id):
        return False
    return int(request_id[-ID_DIGITS:], 16) < int(row.id[-ID_DIGITS:], 16) + int(row.requests)
