"""Who sent a request, by what proxies say of it: nobody else's word has an effect."""

import pytest
from hypothesis import given, strategies as st

from sluicegate.gateway.http.peers import client_of
from sluicegate.gateway.sockets.networks import Networks, parse_address

TRUSTED = Networks("10.0.0.0/8, ::1")
PROXY = "10.0.0.1"
FIELDS = st.sampled_from([b"x-forwarded-for", b"forwarded"])
CLIENTS = st.one_of(
    st.ip_addresses(network="203.0.113.0/24"), st.ip_addresses(network="2001:db8::/32")
).map(str)
PIECES = st.sampled_from(
    [*',;="\\ []:', "for", "by", "proto=", "for=", "unknown", "_hidden", "1.2.3.4", "::1", PROXY]
)
# What a client may write into a header before the proxy appends to it.
FORGED = st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=20)).map(
    lambda text: text.encode("latin-1", "replace")
)


def written(field: bytes, client: str) -> bytes:
    """Return what a proxy appends to a header."""
    if field == b"x-forwarded-for":
        return client.encode()
    return (f'for="[{client}]:4711"' if ":" in client else f"for={client};proto=https").encode()


@given(field=FIELDS, client=CLIENTS, forged=FORGED, is_appended=st.booleans())
def test_the_client_is_whom_the_proxy_named_whatever_came_before(
    field: bytes, client: str, forged: bytes, *, is_appended: bool
) -> None:
    own = written(field, client)
    lines = [forged + b", " + own] if is_appended else [forged, own]

    read = client_of(PROXY, [(field, line) for line in lines], TRUSTED, field)

    assert parse_address(read) == parse_address(client)


@given(FIELDS, CLIENTS, FORGED)
def test_what_an_untrusted_peer_or_another_header_says_has_no_effect(
    field: bytes, client: str, forged: bytes
) -> None:
    (other,) = {b"x-forwarded-for", b"forwarded"} - {field}

    assert client_of(client, [(field, forged)], TRUSTED, field) == client
    assert client_of(PROXY, [(other, forged)], TRUSTED, field) == PROXY


@given(FIELDS, FORGED)
def test_whatever_is_read_is_an_address(field: bytes, forged: bytes) -> None:
    assert parse_address(client_of(PROXY, [(field, forged)], TRUSTED, field)) is not None


@pytest.mark.parametrize(
    ("field", "value", "client"),
    [
        ("x-forwarded-for", "6.6.6.6, 7.7.7.7, 10.3.3.3", "7.7.7.7"),
        ("x-forwarded-for", "10.2.2.2, 10.3.3.3", "10.2.2.2"),
        ("x-forwarded-for", "7.7.7.7:8080", "7.7.7.7"),
        ("x-forwarded-for", "7.7.7.7, garbage, 10.3.3.3", "10.3.3.3"),
        ("forwarded", 'For="[2001:db8::7]:80"; proto=https, for=10.3.3.3', "2001:db8::7"),
        ("forwarded", "for=7.7.7.7, for=unknown", PROXY),
        ("forwarded", "for=7.7.7.7, proto=https", PROXY),
        ("forwarded", 'for="7\\.7.7.7"', "7.7.7.7"),
    ],
)
def test_a_list_is_read_from_its_end(field: str, value: str, client: str) -> None:
    named = [(field.encode(), value.encode())]

    assert client_of(PROXY, named, TRUSTED, field.encode()) == client
