"""Warnings name variables that are no settings, with the nearest name, or deprecated ones."""

import pytest

from sluicegate.backends.settings import BackendSettings, unknown_variables
from sluicegate.gateway.settings import Settings, variable_warnings


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("SLUICEGATE_DATADIR", "SLUICEGATE_DATA_DIR"),
        ("SLUICEGATE_LOG_LEVLE", "SLUICEGATE_LOG_LEVEL"),
        ("SLUICEGATE_port", "SLUICEGATE_PORT"),
        ("SLUICEGATE_BACKNED_TOKEN", "SLUICEGATE_BACKEND_TOKEN"),
    ],
)
def test_a_gateways_variable_is_told_with_the_nearest_name(variable: str, nearest: str) -> None:
    (line,) = variable_warnings({variable: "secret", "SLUICEGATE_HOST": "::1", "PATH": "/bin"})

    assert line.startswith(f"`{variable}` ")
    assert line.endswith(f"; did you mean `{nearest}`?")


def test_a_backends_variable_is_told_with_the_nearest_name() -> None:
    (line,) = unknown_variables({"SLUICEGATE_BACKEND_THREAD": "2"})

    assert "did you mean `SLUICEGATE_BACKEND_THREADS`?" in line


def test_a_name_that_is_near_to_none_is_told_alone() -> None:
    (line,) = variable_warnings({"SLUICEGATE_QQQQQQQQQQQQQQQQQ": "2"})

    assert line.startswith("`SLUICEGATE_QQQQQQQQQQQQQQQQQ` ")
    assert "did you mean" not in line


def test_every_setting_is_known_to_gateways_and_to_backends() -> None:
    gateways = {f"SLUICEGATE_{name.upper()}": "" for name in Settings.__struct_fields__}
    backends = {
        f"SLUICEGATE_BACKEND_{name.upper()}": "" for name in BackendSettings.__struct_fields__
    }
    commands = dict.fromkeys(("SLUICEGATE_URL", "SLUICEGATE_KEY", "SLUICEGATE_DEMO_KEY"), "")

    assert [*variable_warnings(gateways | backends | commands)] == []
    assert [*unknown_variables(gateways | backends | commands)] == []
