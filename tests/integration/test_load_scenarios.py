"""Runs two scenarios of load tests in a short form: k6, a real system, and the report."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from loadtests.scenarios import k6
from loadtests.scenarios.catalogue import Options
from loadtests.scenarios.run import run_scenario
from loadtests.scenarios.system import LocalSystem, local_system
from loadtests.scenarios.workload import templates

MODELS = {"sentiment": ["classify"], "minilm": ["embed", "rerank"]}


@pytest.fixture(scope="module")
def local(light_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    try:
        k6.program()
    except click.ClickException as error:
        pytest.skip(error.message)
    folder = tmp_path_factory.mktemp("load")
    with local_system(
        folder, tenants=2, regions=("eu",), models=light_models, is_pinned=False
    ) as running:
        yield running


@pytest.mark.parametrize("scenario", ["steady", "spike"])
def test_a_scenario_sends_what_is_due_and_reports_it(
    local: LocalSystem, tmp_path: Path, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Options(
        scenario=scenario,
        folder=tmp_path,
        rate=10.0,
        seconds=2.0,
        deadline=5.0,
        texts=20,
        most_in_flight=50,
    )
    kinds = tuple(templates(MODELS))

    run_scenario(
        k6.Load(options=options, url=local.system.url, keys=local.keys, kinds=kinds), local=local
    )

    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    phases = result["phases"]
    assert len(phases) >= 2
    assert sum(phase["sent"] for phase in phases) + result["dropped"] == pytest.approx(
        sum(phase["due"] for phase in phases), abs=3
    )
    assert set().union(*(phase["codes"] for phase in phases)) <= {"200", "503"}
    assert (tmp_path / "report.md").exists()
    assert (tmp_path / "k6" / scenario / "answers.csv.gz").exists()
    assert "| holds |" in capsys.readouterr().out
    keys = [path for path in tmp_path.rglob("*") if path.is_file() and _holds(path, local.keys)]
    assert keys == []


def _holds(path: Path, keys: tuple[str, ...]) -> bool:
    return any(key.encode() in path.read_bytes() for key in keys)
