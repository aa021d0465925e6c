"""Runs two scenarios of load tests in a short form: k6, a real system, and the report."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from loadtests.scenarios import k6
from loadtests.scenarios.local_system import ANY_CORES, LocalSystem, local_system
from loadtests.scenarios.report import Result
from loadtests.scenarios.run import LoadTest, Options
from loadtests.scenarios.workload import Mix, templates

pytestmark = pytest.mark.skipif(
    k6.program() is None, reason="k6 is missing: `make install-load` installs it"
)
MODELS = {"sentiment": ["classify"], "minilm": ["embed", "rerank"]}


@pytest.fixture(scope="module")
def local(light_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    folder = tmp_path_factory.mktemp("load")
    with local_system(
        folder, tenants=2, regions=("eu",), models=light_models, cores=ANY_CORES
    ) as running:
        yield running


def _run(local: LocalSystem, folder: Path, scenario: str, shown: list[str]) -> Result:
    options = Options(
        scenario=scenario,
        rate=10.0,
        seconds=2.0,
        zipf=None,
        price=0.1,
        most_in_flight=50,
        folder=folder,
    )
    target = k6.Target(url=local.system.url, keys=local.keys, deadline=5.0)
    mix = Mix(templates=tuple(templates(MODELS)), tenants=2, zipf=0.0, distinct=20, seed=1)
    LoadTest(options, target, mix, local=local, show=shown.append).run()
    return msgspec.json.decode((folder / "result.json").read_bytes(), type=Result)


@pytest.mark.parametrize("scenario", ["steady", "spike"])
def test_a_scenario_sends_what_is_due_and_reports_it(
    local: LocalSystem, tmp_path: Path, scenario: str
) -> None:
    shown: list[str] = []

    result = _run(local, tmp_path, scenario, shown)

    assert len(result.phases) >= 2
    assert sum(phase.sent for phase in result.phases) + result.dropped == pytest.approx(
        sum(phase.due for phase in result.phases), abs=3
    )
    assert set().union(*(phase.codes for phase in result.phases)) <= {"200", "503"}
    assert (tmp_path / "report.html").read_text().count("<svg") >= 6
    assert (tmp_path / "answers.csv.gz").exists()
    keys = [path for path in tmp_path.rglob("*") if path.is_file() and _holds(path, local.keys)]
    assert keys == []
    assert any("holds" in line or "yes" in line for line in shown)


def _holds(path: Path, keys: tuple[str, ...]) -> bool:
    return any(key.encode() in path.read_bytes() for key in keys)
