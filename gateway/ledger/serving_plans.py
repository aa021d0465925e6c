"""Stores operators' serving plans. A plan says which revisions of a model serve its requests.

If a model has no plan, the model's folder decides which revisions serve it.
"""

from typing import Any, Final

import msgspec
from sqlalchemy import Row, func, insert, select, update

from sluicegate.gateway.errors import Conflict
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.audit import Audit
from sluicegate.gateway.ledger.store import Store
from sluicegate.gateway.ledger.types import StoredPlan
from sluicegate.wire.plans import Serving, ServingPlans

_LOCK: Final = "serving_plans"
_table: Final = schema.serving_plans
_decode: Final = msgspec.json.Decoder(Serving | None).decode


class ServingPlanStore:
    """Reads and changes plans, which apply to all gateway regions. All calls block."""

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store = store
        self._audit = audit

    def load(self) -> ServingPlans:
        """Return all plans and their version. Every change of a plan increases the version."""
        with self._store.reading() as connection:
            rows = connection.execute(select(_table)).all()
        plans = {row.model: plan for row in rows if (plan := _decode(row.plan)) is not None}
        return ServingPlans(version=max((row.version for row in rows), default=0), plans=plans)

    def plan(self, model: str) -> StoredPlan:
        """Return a model's present plan and its previous plan."""
        with self._store.reading() as connection:
            row = connection.execute(select(_table).where(_table.c.model == model)).first()
        return StoredPlan() if row is None else _stored(row)

    def change(
        self, model: str, wanted: StoredPlan, *, actor: str, action: str, detail: dict[str, object]
    ) -> StoredPlan:
        """Store a model's plan and previous plan, if the stored plan still has `wanted.version`.

        Raises:
            Conflict: somebody else has changed the plan.
        """
        row = {"plan": _encode(wanted.plan), "previous": _encode(wanted.previous)}
        with self._store.writing() as connection:
            now = self._store.lock_subject(connection, _LOCK)
            same = _table.c.model == model
            found = connection.execute(select(_table).where(same)).first()
            if (0 if found is None else found.version) != wanted.version:
                raise Conflict(f"somebody else has changed the plan of `{model}`; read it again")
            newest = connection.scalar(select(func.max(_table.c.version))) or 0
            # The version is a time, so that versions grow even after a restore from a backup.
            version = max(newest + 1, now)
            if found is None:
                connection.execute(insert(_table), row | {"model": model, "version": version})
            else:
                connection.execute(update(_table).where(same).values(**row, version=version))
            self._audit.add(connection, actor=actor, action=action, subject=model, detail=detail)
        return msgspec.structs.replace(wanted, version=version)


def _stored(row: Row[Any]) -> StoredPlan:
    return StoredPlan(version=row.version, plan=_decode(row.plan), previous=_decode(row.previous))


def _encode(plan: Serving | None) -> str:
    return msgspec.json.encode(plan).decode()
