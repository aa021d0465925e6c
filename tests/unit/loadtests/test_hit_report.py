"""The report of hits says what a request costs the server, what it needs, and the generator."""

from pathlib import Path

import pytest

from loadtests import report
from loadtests.machine import Machine
from loadtests.report import Costs, Row


def test_costs_stand_beside_each_figure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "__file__", str(tmp_path / "report.py"))
    machine = Machine(cpu="a", cores=2, memory_gib=1.0, python="3", date="d", commit="c")
    costs = Costs(server=40.04, others=10.5, generator=15.25)
    rows = [Row(what="hit", rate=1.0, ratio=1.0, costs=costs), Row(what="none", rate=0, ratio=0)]

    report.show("Hits: a test", rows, {}, machine)

    assert "| hit | 40.0 | 10.5 | 50.5 | 15.2 |" in capsys.readouterr().out
