"""Stores copies of what each gateway region has published, in case Redis loses the originals.

A region publishes its configuration documents and the names of its drained backends. This module
does not parse the documents.
"""

from collections.abc import Iterable, Mapping

import msgspec
from sqlalchemy import delete, func, select, update

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.store import Store

_KEPT = 50


class RecordedState(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the ledger has stored of a region's published state.

    This is the number of the newest configuration document, and the list of drained backends, which
    get no new requests.
    """

    generation: int = 0
    """The generation (number) of the newest configuration document, or 0 if there is none."""
    drains: int = 0
    """The version of the list `drained`."""
    drained: frozenset[str] = frozenset()


class PublishedState:
    """Reads and writes what each gateway region has published. All calls block."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def newest(self, region: str) -> RecordedState:
        """Return the newest state of `region`."""
        documents, drains = schema.published_documents, schema.drained_backends
        with self._store.reading() as connection:
            newest = select(func.max(documents.c.generation)).where(documents.c.region == region)
            generation = connection.scalar(newest) or 0
            of_region = select(drains).where(drains.c.region == region)
            row = connection.execute(of_region).one_or_none()
        if row is None:
            return RecordedState(generation=generation)
        drained = msgspec.json.decode(row.backends, type=frozenset[str])
        return RecordedState(generation=generation, drains=row.version, drained=drained)

    def documents(self, region: str) -> list[str]:
        """Return the stored configuration documents of `region`, the newest first."""
        table = schema.published_documents
        query = select(table.c.content).where(table.c.region == region)
        with self._store.reading() as connection:
            return list(connection.scalars(query.order_by(table.c.generation.desc())))

    def keep_documents(self, region: str, documents: Mapping[int, str]) -> None:
        """Store those configuration documents that are not stored yet.

        `documents` maps the generation (number) of each document to its content. Documents that are
        50 or more generations older than the region's newest document are deleted.
        """
        table = schema.published_documents
        rows = [
            {"region": region, "generation": generation, "content": content}
            for generation, content in documents.items()
        ]
        with self._store.writing() as connection:
            self._store.insert_new(connection, table, rows)
            of_region = table.c.region == region
            newest = connection.scalar(select(func.max(table.c.generation)).where(of_region)) or 0
            connection.execute(delete(table).where(of_region, table.c.generation <= newest - _KEPT))

    def keep_drained(self, region: str, version: int, backends: Iterable[str]) -> None:
        """Store the names of the drained backends, unless a newer version of the list is stored."""
        table = schema.drained_backends
        text = msgspec.json.encode(sorted(backends)).decode()
        row = {"version": version, "backends": text}
        with self._store.writing() as connection:
            if not self._store.insert_new(connection, table, [row | {"region": region}]):
                older = (table.c.region == region) & (table.c.version < version)
                connection.execute(update(table).where(older).values(**row))
