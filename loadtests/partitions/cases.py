"""Lists the pairs of processes to part and the directions in which packets are dropped."""

from enum import StrEnum

import msgspec

from loadtests.partitions.members import BACKENDS
from testing.namespaces import NamespaceNetwork


class Direction(StrEnum):
    """The direction in which packets are dropped."""

    BOTH = "both"
    FORTH = "forth"
    """Those of the first, who connects, to the second."""
    BACK = "back"
    """Those of the second to the first."""


class ProcessPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two members, or one and several, of which the first opens the connections."""

    name: str
    first: str
    others: tuple[str, ...]
    may_fail: bool = False
    """Whether requests may fail until everything is well; with all other pairs none may."""

    def start_dropping(self, network: NamespaceNetwork, direction: Direction) -> None:
        """Start to drop packets."""
        for other in self.others:
            if direction is not Direction.BACK:
                network.drop(self.first, other)
            if direction is not Direction.FORTH:
                network.drop(other, self.first)


def _pair(first: str, second: str) -> ProcessPair:
    return ProcessPair(name=f"{first}, {second}", first=first, others=(second,))


PAIRS = (
    _pair("gateway", "state"),
    _pair("gateway", "cache"),
    _pair("gateway", "eu-0"),
    ProcessPair(name="gateway, every backend", first="gateway", others=BACKENDS, may_fail=True),
    _pair("gateway", "ledger"),
    _pair("admin", "state"),
    _pair("admin", "cache"),
    _pair("admin", "ledger"),
    _pair("shipper", "state"),
    _pair("shipper", "ledger"),
    _pair("billing", "state"),
    _pair("billing", "ledger"),
    _pair("request-log", "state"),
)
"""Every two processes that speak with each other; `state`, `cache` and `ledger` are the servers."""
