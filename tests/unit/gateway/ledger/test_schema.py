"""The tables can be made in either database."""

from types import ModuleType

import pytest
from sqlalchemy import Dialect, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable

from gateway.ledger import schema


@pytest.mark.parametrize("database", [sqlite, postgresql], ids=["sqlite", "postgresql"])
@pytest.mark.parametrize("table", schema.metadata.sorted_tables, ids=lambda table: table.name)
def test_every_table_is_valid_in_both(table: Table, database: ModuleType) -> None:
    dialect: Dialect = database.dialect()
    statement = str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))

    assert "CREATE TABLE IF NOT EXISTS" in statement
