"""Ports, keys and tokens of the environment are checked before anything starts."""

import pytest

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.settings import Settings, load_settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "99999"),
        ("ADMIN_PORT", "-1"),
        ("ADMIN_KEY", "secret-0123456789\n"),
        ("ADMIN_KEY", " secret-0123456789"),
        ("ADMIN_KEY", "secret-0123456789\udcff"),
        ("ADMIN_KEY", "secret-0123456789\x7f"),
        ("METRICS_KEY", "secret-0123456789\n"),
        ("SECOND_ADMIN_KEY", "secret-0123456789\n"),
        ("SECOND_METRICS_KEY", "secret-0123456789\n"),
        ("BACKEND_TOKEN", "secret-0123456789\r\nx-more: 1"),
    ],
)
def test_what_cannot_be_listened_on_or_sent_is_refused_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings({f"SLUICEGATE_{name}": value})

    assert name.lower() in caught.value.detail.lower()
    assert "secret" not in caught.value.detail


def test_an_empty_environment_is_that_of_the_defaults() -> None:
    assert load_settings({}) == Settings()


def test_what_can_be_sent_is_taken() -> None:
    keys = {"SLUICEGATE_ADMIN_KEY": "schlüssel, ключ", "SLUICEGATE_BACKEND_TOKEN": "a"}

    settings = load_settings(keys)

    assert (settings.admin_key, settings.backend_token) == ("schlüssel, ключ", "a")
