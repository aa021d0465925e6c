"""Every panel and rule is a query that a Prometheus answers from a scrape of a running system."""

import shutil
from pathlib import Path

import pytest

from loadtests.dashboards import check
from testing.model_repository import write_repository
from testing.system import System

pytestmark = [pytest.mark.e2e, pytest.mark.system]


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_every_query_is_answered_and_those_of_a_sound_system_have_data(tmp_path: Path) -> None:
    models = write_repository(tmp_path / "models", real=True)

    with System(tmp_path / "data", models=models) as system:
        wrong = check(system, seconds=4.0)

    assert wrong == []
