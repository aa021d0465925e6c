"""Settings that no process could live by are refused by name, before one is started."""

import pytest

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.settings import load_settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # Many programs take -1 for no bound; every process would be above it, and killed.
        ("memory_limit_bytes", "-1"),
        ("backend_memory_limit_bytes", "-1"),
        ("heartbeat_timeout", "-1"),
        ("heartbeat_timeout", "0.5"),
        ("heartbeat_timeout", "nan"),
        ("shutdown_delay", "inf"),
        ("drain", "inf"),
        ("drain", "nan"),
        ("drain", "-1"),
        ("head_timeout", "nan"),
        ("keep_alive", "inf"),
        ("max_connections", "0"),
        ("usage_events_keep", "nan"),
        ("tcp_user_timeout", "inf"),
        ("log_level", "verbose"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?i){name}"):
        load_settings({f"SLUICEGATE_{name.upper()}": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("heartbeat_timeout", "0"),
        ("heartbeat_timeout", "2"),
        ("drain", "0"),
        ("usage_events_keep", "inf"),
    ],
)
def test_a_number_at_its_bound_is_taken(name: str, value: str) -> None:
    settings = load_settings({f"SLUICEGATE_{name.upper()}": value})

    assert getattr(settings, name) == float(value)
