"""The tables can be made in either database, and a file of SQLite may be replaced."""

from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import Dialect, Table, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.ledger import Ledger
from tests.support.ledgers import ledger_url, open_ledger


@pytest.mark.parametrize("database", [sqlite, postgresql], ids=["sqlite", "postgresql"])
@pytest.mark.parametrize("table", schema.metadata.sorted_tables, ids=lambda table: table.name)
def test_every_table_is_valid_in_both(table: Table, database: ModuleType) -> None:
    dialect: Dialect = database.dialect()
    statement = str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))

    assert "CREATE TABLE IF NOT EXISTS" in statement


def test_a_file_that_is_replaced_while_it_is_opened_is_left(tmp_path: Path) -> None:
    """What is written to a file that has no name any more is lost."""
    (tmp_path / "other").mkdir()
    with open_ledger(tmp_path / "other") as other:
        other.accounts.create_tenant("restored")
    with open_ledger(tmp_path) as ledger:
        ledger.accounts.create_tenant("former")
    restored = [tmp_path / "other" / "ledger.db"]

    def replace(*_: object) -> None:
        if restored:
            restored.pop().replace(tmp_path / "ledger.db")

    with Ledger(ledger_url(tmp_path)) as ledger:
        event.listen(ledger._store._engine, "connect", replace, insert=True)

        ledger.accounts.tenants()

        assert [tenant.id for tenant in ledger.accounts.tenants()] == ["restored"]
