"""Judges the failovers of a fleet by bounds that are fixed before anything is sent."""

from collections.abc import Mapping, Sequence

import msgspec

from gateway.types import Rule
from loadtests.chaos_sentinel import LedgerComparison
from loadtests.fleet.faults import DETECTION, OVERLAP, Fault
from loadtests.fleet.system import DOWN_AFTER, GATEWAYS, SHARE, STATE_TIMEOUT
from loadtests.windows import LARGEST_LEASE, failover_bound
from testing.redis_deployments import FAILOVER_TIMEOUT

OFFERED = 3.0
"""Times the limit that each tenant requests."""
_BREAKER = 1.0
LONGEST_REDIS = DOWN_AFTER + 2 * FAILOVER_TIMEOUT + 4.0
"""Seconds without a primary Redis at most: an election without a leader is repeated once."""
_CONNECTING, _CHECK, _STATEMENT = 3.0, 3.0, 12.0
"""Seconds that a connection to PostgreSQL, its check and a statement take at most."""
LEAST_SHARE = 0.5
"""The part of its limit that a tenant is given at least: who refuses all is over no limit."""
_SERVERS = 2
LONGEST_CHANGE = _STATEMENT + 2 * (_CHECK + _SERVERS * _CONNECTING)
"""Seconds of an operator's call at most, whatever PostgreSQL does: a statement, or a check of the
connection and new ones, each of which may be made twice."""
LONGEST_BILLING = DETECTION + OVERLAP + _STATEMENT + 2 * (_CHECK + _SERVERS * _CONNECTING)
"""Seconds from a fault to the first event that is billed again, at most."""


class TenantWindows(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's limit, how far its worst window was over it, and what it was given."""

    rule: Rule
    over: float
    share: float
    """The part of what the limit allows over the whole round that it was given."""


class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen around one failover of PostgreSQL and one of Redis. Times are in seconds."""

    fault: Fault
    ledger_away: float
    """From the fault until the new primary took writes."""
    billed_after: float
    """From the fault until the ledger had an event that is later than it struck."""
    redis_away: float
    answered: int
    refused: int
    free_refused: int
    """Of the tenant without a limit."""
    failed: int
    slowest_before: float
    """The longest answer before the faults: what the machine's other work does."""
    slowest: float
    windows: Sequence[TenantWindows]
    changes: int
    changes_refused: int
    changes_wrong: Mapping[str, int]
    slowest_change: float
    unready: int
    without_ledger: int


def allowed_over(rule: Rule, *, redis_away: float) -> float:
    """Return by how many requests a window may be over `rule`.

    That is the bound of a failover, and what each worker may be ahead while Redis is late.
    """
    ahead = GATEWAYS * LARGEST_LEASE * rule.capacity
    unaware = redis_away + _BREAKER + STATE_TIMEOUT
    offered = OFFERED * rule.capacity / rule.window
    return ahead + failover_bound(
        rule, share=SHARE, workers=GATEWAYS, unaware=unaware, offered=offered
    )


def problems(result: RoundResult) -> list[str]:
    """Return the claims that do not hold in a round."""
    found = {
        f"{result.failed} requests failed": result.failed,
        f"{result.free_refused} refused who have no limit": result.free_refused,
        "no change was made": not result.changes,
        f"Redis was {result.redis_away:.1f} s away": result.redis_away > LONGEST_REDIS,
        f"billing took {result.billed_after:.1f} s": result.billed_after > LONGEST_BILLING,
        f"a change took {result.slowest_change:.1f} s": result.slowest_change > LONGEST_CHANGE,
        f"changes were answered {dict(result.changes_wrong)}": result.changes_wrong,
        f"gateways were not ready {result.unready} times": result.unready,
    }
    found |= {
        f"over {one.rule.capacity} by {one.over:.1f}": (
            one.over > allowed_over(one.rule, redis_away=result.redis_away)
        )
        for one in result.windows
    }
    found |= {
        f"of {one.rule.capacity} only {one.share:.2f} were given": one.share < LEAST_SHARE
        for one in result.windows
    }
    return [claim for claim, is_so in found.items() if is_so]


def final_problems(compared: LedgerComparison, *, lost_changes: Sequence[str]) -> list[str]:
    """Return the claims about the whole run that do not hold."""
    found = {
        f"{compared.missing} answers are not billed": compared.missing,
        f"{compared.surplus} were billed without an answer": compared.surplus,
        f"{compared.twice} were billed twice": compared.twice,
        f"confirmed changes are lost: {', '.join(lost_changes)}": lost_changes,
    }
    return [claim for claim, is_so in found.items() if is_so]
