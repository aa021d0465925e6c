"""What the supervisor says first to a listener behind proxies."""

import pytest

from sluicegate.gateway.settings import Settings
from sluicegate.gateway.supervisor.topology import preface_of_workers


@pytest.mark.parametrize(
    ("host", "trusted", "is_proxy"),
    [
        ("localhost", "127.0.0.0/8", True),
        ("0.0.0.0", "127.0.0.1", True),  # noqa: S104 - nothing is bound
        ("::", "::1", True),
        ("::1", "127.0.0.0/8", False),
        ("127.0.0.1", "10.0.0.0/8", False),
    ],
)
def test_the_header_of_a_proxy_is_sent_from_addresses_that_are_trusted(
    host: str, trusted: str, *, is_proxy: bool
) -> None:
    settings = Settings(host=host, trusted_proxies=trusted, proxy_protocol=True)

    assert bool(preface_of_workers(settings).prefix) == is_proxy
