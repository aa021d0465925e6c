"""Reads IP addresses and networks, and says which addresses are trusted."""

import re
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

from sluicegate.gateway.errors import ConfigurationError

Address = IPv4Address | IPv6Address
_SEPARATORS: Final = re.compile(r"[\s,]+")
# Whoever has one address of IPv6 has such a network of them.
_PREFIX_BITS: Final = 64
_ADDRESSES: Final = 4096


class Networks:
    """Holds networks whose addresses are trusted."""

    def __init__(self, text: str = "") -> None:
        """Read networks and addresses with blanks or commas between.

        Raises:
            ConfigurationError: one of them is none.
        """
        self._networks = [_network(each) for each in _SEPARATORS.split(text) if each]
        self._has = lru_cache(_ADDRESSES)(self._is_in_any)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: str) -> bool:
        """Return whether `address` is in one of the networks; text that is none is in none."""
        return bool(self._networks) and self._has(address)

    def _is_in_any(self, text: str) -> bool:
        address = parse_address(text)
        return address is not None and any(address in each for each in self._networks)


def parse_address(text: str) -> Address | None:
    """Return the address that `text` is; IPv4 in IPv6 is IPv4, and a zone is left out."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def client_network(text: str) -> str:
    """Return what one client has, by an address of it: the address, or its /64 of IPv6."""
    address = parse_address(text)
    if isinstance(address, IPv6Address):
        return str(ip_network((int(address), _PREFIX_BITS), strict=False))
    return text if address is None else str(address)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise ConfigurationError(
            f"`{text}` in `SLUICEGATE_TRUSTED_PROXIES` is no network; write 10.0.0.0/8 or ::1"
        ) from error
