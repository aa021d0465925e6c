"""Says which addresses belong to the public Internet, independent of Python's version.

The networks are those of IANA's special-purpose registries, as of 2026-11:
https://www.iana.org/assignments/iana-ipv4-special-registry
https://www.iana.org/assignments/iana-ipv6-special-registry
None of them is public, even if it is reachable globally: it belongs to a protocol, not to hosts.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

_UNICAST_4: Final = IPv4Address("1.0.0.0"), IPv4Address("223.255.255.255")
_UNICAST_6: Final = IPv6Network("2000::/3")
_SPECIAL_4: Final = tuple(
    map(
        IPv4Network,
        (
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
        ),
    )
)
# The other networks of the registry are outside `_UNICAST_6`.
_SPECIAL_6: Final = tuple(
    map(
        IPv6Network,
        ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
    )
)
# Addresses that lead to the IPv4 address in their last bytes. Other forms with one (6to4, Teredo,
# local prefixes of NAT64) lead to it through an unknown relay.
_EMBEDDING: Final = IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is global unicast and has no special purpose."""
    if isinstance(address, IPv6Address):
        if any(address in network for network in _EMBEDDING):
            return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        return address in _UNICAST_6 and not any(address in network for network in _SPECIAL_6)
    first, last = _UNICAST_4
    return first <= address <= last and not any(address in network for network in _SPECIAL_4)
