"""Networks of addresses that are trusted, however an address is written."""

import pytest
from hypothesis import given, strategies as st

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.sockets.networks import Networks, client_network

TRUSTED = Networks("10.0.0.0/8, 192.168.1.7 fd00::/8\n::1")


@pytest.mark.parametrize(
    "address", ["10.200.1.1", "192.168.1.7", "fd00::3%eth0", "::1", "::ffff:10.1.1.1"]
)
def test_an_address_of_a_network_is_in_it(address: str) -> None:
    assert address in TRUSTED


@given(st.one_of(st.text(), st.ip_addresses(network="11.0.0.0/8").map(str)))
def test_any_other_text_is_in_none(text: str) -> None:
    assert text not in Networks("10.0.0.0/8")
    assert text not in Networks()


@pytest.mark.parametrize("text", ["10.0.0.0/40", "proxy", "10.0.0.0/8; ::1"])
def test_what_is_no_network_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="SLUICEGATE_TRUSTED_PROXIES"):
        Networks(text)


def test_all_of_a_64_is_one_client() -> None:
    assert client_network("2001:db8::1") == client_network("2001:db8::ffff:1")
    assert client_network("2001:db8::1") != client_network("2001:db8:0:1::1")
    assert client_network("::ffff:1.2.3.4") == client_network("1.2.3.4") == "1.2.3.4"
