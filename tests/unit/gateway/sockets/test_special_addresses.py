"""Every entry of IANA's special-purpose registries is refused, and its neighbours are not."""

import ipaddress

import pytest

from sluicegate.gateway.sockets.special_addresses import is_public

# https://www.iana.org/assignments/iana-ipv4-special-registry, whole, and multicast.
REGISTRY_4 = """
0.0.0.0/8 0.0.0.0/32 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12
192.0.0.0/24 192.0.0.0/29 192.0.0.8/32 192.0.0.9/32 192.0.0.10/32 192.0.0.170/32 192.0.0.171/32
192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.88.99.2/32 192.168.0.0/16
192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 255.255.255.255/32
224.0.0.0/4
"""
# https://www.iana.org/assignments/iana-ipv6-special-registry, and networks that are no unicast,
# were withdrawn, or embed an address of IPv4 that is not public.
REGISTRY_6 = """
::1/128 ::/128 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001::/32 2001:1::1/128
2001:1::2/128 2001:1::3/128 2001:2::/48 2001:3::/32 2001:4:112::/48 2001:10::/28 2001:20::/28
2001:30::/28 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20 5f00::/16 fc00::/7 fe80::/10
fec0::/10 ff00::/8 ::/96 4000::/2 64:ff9b::10.0.0.0/104 64:ff9b::169.254.0.0/112
::ffff:10.0.0.0/104 ::ffff:127.0.0.0/104 ::ffff:0:0:0/96
"""


@pytest.mark.parametrize("entry", (REGISTRY_4 + REGISTRY_6).split())
def test_no_address_of_a_special_purpose_is_public(entry: str) -> None:
    network = ipaddress.ip_network(entry)
    middle = network[network.num_addresses // 2]

    assert not any(map(is_public, (network[0], middle, network[-1])))


@pytest.mark.parametrize("entry", REGISTRY_4.split())
def test_an_address_within_an_address_is_judged(entry: str) -> None:
    inner = int(ipaddress.ip_network(entry)[0])

    for prefix in ("::ffff:0:0", "64:ff9b::"):
        assert not is_public(ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | inner))


NEIGHBOURS = """
1.0.0.0 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0
192.88.98.255 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255
2000:: 2001:200:: 2001:db7:ffff::1 2001:db9:: 2003:: 2606:4700::1111 2620:4f:7fff::1
3ffe:ffff:: 64:ff9b::808:808 ::ffff:8.8.8.8
"""


@pytest.mark.parametrize("address", NEIGHBOURS.split())
def test_all_others_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))
