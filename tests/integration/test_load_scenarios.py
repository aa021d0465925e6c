"""Runs two scenarios of load tests in a short form: k6, a real system, and the report."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from loadtests.scenarios import k6
from loadtests.scenarios.run import run_scenario
from loadtests.scenarios.system import local_system
from loadtests.scenarios.workload import templates
from testing.system import System

MODELS = {"sentiment": ["classify"], "minilm": ["embed", "rerank"]}


@pytest.fixture(scope="module")
def local(
    light_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[System, tuple[str, ...]]]:
    try:
        k6.program()
    except click.ClickException as error:
        pytest.skip(error.message)
    folder = tmp_path_factory.mktemp("load")
    with local_system(folder, light_models, regions=("eu",), is_paced=False) as running:
        yield running


@pytest.mark.parametrize("scenario", ["steady", "spike"])
def test_a_scenario_sends_what_is_due_and_reports_it(
    local: tuple[System, tuple[str, ...]],
    tmp_path: Path,
    scenario: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    system, keys = local
    load = k6.Load(
        folder=tmp_path,
        url=system.url,
        keys=keys,
        kinds=tuple(templates(MODELS)),
        deadline=5.0,
        most_in_flight=50,
    )

    run = run_scenario(scenario, load, rate=10.0, seconds=2.0, system=system)

    assert len(run.plan.phases) >= 2
    answers = run.sent.answers
    assert len(answers) + run.sent.dropped == pytest.approx(run.plan.arrivals, abs=3)
    assert set(answers["status"]) <= {200, 503}
    assert (tmp_path / "report.md").exists()
    assert (tmp_path / "k6" / scenario / "answers.csv").exists()
    assert (tmp_path / "k6" / scenario / "plots.html").exists()
    assert "| holds |" in capsys.readouterr().out
    found = [path for path in tmp_path.rglob("*") if path.is_file() and _holds(path, keys)]
    assert found == []


def _holds(path: Path, keys: tuple[str, ...]) -> bool:
    return any(key.encode() in path.read_bytes() for key in keys)
