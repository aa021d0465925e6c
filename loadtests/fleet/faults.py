"""Makes PostgreSQL fail over in each way, as a cluster manager would do it."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

import msgspec

from testing.postgresql_pair import PostgreSQLPair

DETECTION = 3.0
"""Seconds from a fault to the promotion of the standby."""
OVERLAP = 2.0
"""Seconds that a frozen primary lives again, beside its successor, before it is killed."""


class Fault(StrEnum):
    """What happens to the primary."""

    KILLED = "kill -9"
    FROZEN = "SIGSTOP"
    CUT_OFF = "cut off"
    """Packets from and to it are dropped."""
    SWITCHOVER = "switchover"
    """It is stopped in order, and the standby promoted at once."""


class FailoverTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When a fault began and when the new primary took writes, on the monotonic clock."""

    began: float
    promoted: float


def fail_over(pair: PostgreSQLPair, fault: Fault, struck: Callable[[], None]) -> FailoverTimes:
    """Make the primary fail, promote its standby, and rebuild the former primary. Blocks.

    `struck` is called as soon as the primary takes nothing any more.
    """
    old = pair.primary
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        if fault is Fault.KILLED:
            old.kill()
        elif fault is Fault.FROZEN:
            old.pause()
        elif fault is Fault.CUT_OFF:
            stack.enter_context(_dropping(old.port))
        else:
            old.stop()
        struck()
        if fault is not Fault.SWITCHOVER:
            time.sleep(DETECTION)
        pair.promote()
        promoted = time.monotonic()
        if fault is Fault.FROZEN:
            old.resume()
            time.sleep(OVERLAP)
        old.end()
    pair.rejoin()
    return FailoverTimes(began=began, promoted=promoted)


@contextlib.contextmanager
def _dropping(port: int) -> Iterator[None]:
    """Drop all packets from and to a port, in this network namespace."""
    rules = [("INPUT", "-p", "tcp", end, str(port), "-j", "DROP") for end in ("--dport", "--sport")]
    for rule in rules:
        _change_firewall("-A", rule)
    try:
        yield
    finally:
        for rule in rules:
            _change_firewall("-D", rule)


def _change_firewall(action: str, rule: Sequence[str]) -> None:
    command = ("iptables", action, *rule)
    subprocess.run(command, check=True)
