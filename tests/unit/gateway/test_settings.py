"""What the environment says is checked before anything starts, and a secret is not shown."""

import math

import pytest

from gateway.errors import ConfigurationError
from gateway.settings import Settings, load_settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "99999"),
        ("ADMIN_PORT", "-1"),
        ("LOG_LEVEL", "verbose"),
        ("HEARTBEAT_TIMEOUT", "-1"),
        ("SHUTDOWN_DELAY", "nan"),
        ("DRAIN", "inf"),
        ("HEAD_TIMEOUT", "-0.5"),
        ("KEEP_ALIVE", "inf"),
        ("MEMORY_LIMIT_BYTES", "-1"),
        ("MAX_CONNECTIONS", "-1"),
        ("USAGE_EVENTS_KEEP", "-1"),
        ("EVENTS_KEEP", "nan"),
        ("ADMIN_KEY", "secret-0123456789\n"),
        ("ADMIN_KEY", "secret 0123456789"),
        ("BACKEND_TOKEN", "secret-0123456789\r\nx-more: 1"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_the_name_of_its_variable(
    name: str, value: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings({f"SLUICEGATE_{name}": value})

    assert name.lower() in caught.value.detail.lower()
    assert "secret" not in caught.value.detail


def test_values_at_the_bounds_are_taken() -> None:
    values = {"LOG_LEVEL": "debug", "EVENTS_KEEP": "inf", "DRAIN": "0", "MEMORY_LIMIT_BYTES": "0"}

    found = load_settings({f"SLUICEGATE_{name}": value for name, value in values.items()})

    assert load_settings({}) == Settings()
    assert (found.log_level, found.events_keep, found.drain) == ("debug", math.inf, 0.0)
