"""What a backend is told: environment first, command line over it."""

from pathlib import Path

import pytest

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.settings import read_settings


def test_the_environment_sets_what_the_command_line_does_not() -> None:
    environment = {
        "SLUICEGATE_BACKEND_PORT": "9000",
        "SLUICEGATE_BACKEND_REGION": "us",
        "SLUICEGATE_BACKEND_MODELS": "/srv/models",
        "SLUICEGATE_BACKEND_DRAIN": "2.5",
        "SLUICEGATE_BACKEND_TOKEN": "12345",
        "SLUICEGATE_BACKEND_EXIT_WITH_PARENT": "true",
    }

    settings = read_settings(environment, region="eu", host=None)

    assert (settings.port, settings.region, settings.drain) == (9000, "eu", 2.5)
    assert settings.models == Path("/srv/models")
    assert settings.token == "12345"
    assert settings.exit_with_parent


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "70000"),
        ("THREADS", "-1"),
        ("PROVIDER", "tpu"),
        ("DRAIN", "x"),
        ("SERVES", ""),
        ("SERVES", " ,"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(StartProblem, match=f"`SLUICEGATE_BACKEND_{name}`"):
        read_settings({f"SLUICEGATE_BACKEND_{name}": value})


@pytest.mark.parametrize("name", ["TOKEN", "SECOND_TOKEN"])
@pytest.mark.parametrize("value", ["sesame\n", " sesame", " ", "se\nsame"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(name: str, value: str) -> None:
    """No caller could have it: each call would be refused, in the middle of a rotation."""
    with pytest.raises(StartProblem, match=f"`SLUICEGATE_BACKEND_{name}` cannot be sent") as caught:
        read_settings({f"SLUICEGATE_BACKEND_{name}": value})

    assert "same" not in str(caught.value)


def test_an_endless_drain_is_refused() -> None:
    with pytest.raises(StartProblem, match="drain"):
        read_settings({}, drain=float("inf"))


def test_one_worker_thread_a_core_by_default() -> None:
    assert read_settings({}).worker_threads >= 1
    assert read_settings({}, threads=3).worker_threads == 3


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_traces_are_on_when_the_standard_variables_say_so(
    environment: dict[str, str], *, wanted: bool
) -> None:
    assert read_settings(environment).traces is wanted
