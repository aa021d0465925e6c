"""Tests the tables of the command line."""

import pytest

from sluicegate.gateway.cli.tables import print_table


def test_columns_are_as_wide_as_what_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("id", "state", "name"), [("key_1", "active", ""), ("k", "expired", "app")])

    assert capsys.readouterr().out.splitlines() == [
        "ID     STATE    NAME",
        "key_1  active",
        "k      expired  app",
    ]


def test_a_table_without_rows_has_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("region", "backend"), [])

    assert capsys.readouterr().out == "REGION  BACKEND\n"
