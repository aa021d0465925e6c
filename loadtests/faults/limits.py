"""Judges the limits of tenants around a failover of the state Redis."""

from collections.abc import Sequence

from loadtests.faults.catalogue import Case
from loadtests.faults.judge import LIMITED
from loadtests.faults.processes import RULE, SHARE, STATE_TIMEOUT
from loadtests.windows import AdmittedRequest, bound, failover_bound, most_over_the_limit
from testing.redis_deployments import FAILOVER_TIMEOUT

LONGEST_FAILOVER = 1.5 + 2 * FAILOVER_TIMEOUT + 4.0
"""The most seconds until there is a new primary. An election without a leader is repeated once."""


def limits_hold(case: Case) -> Sequence[str]:
    """Find a window with more requests than the limit and the failover's bound allow."""
    away = case.topology.away
    over, _ = worst_window(case)
    rate = len(case.sent) / len(case.topology.keys) / (case.sent[-1].due - case.sent[0].due)
    allowed = over_admission_bound(away, workers=case.topology.setup.workers, offered=rate)
    case.figures.update(away=round(away, 1), over=round(over, 1), bound=round(allowed, 1))
    found = [f"{over:.1f} requests over the limit"] if over > allowed else []
    return [*found, f"{away:.1f} s without a primary"] if away > LONGEST_FAILOVER else found


def worst_window(case: Case) -> tuple[float, float]:
    """Return by how many requests the worst window of a limited tenant was over `RULE`.

    The second value is the smallest share of its limit that a tenant got.
    """
    lasted = case.sent[-1].due - case.sent[0].due
    admitted = [
        [
            AdmittedRequest(each.due, each.came)
            for each in case.sent
            if each.tenant == tenant and each.status == 200
        ]
        for tenant in case.topology.keys
        if tenant.startswith(LIMITED)
    ]
    over = max(most_over_the_limit(each, RULE) for each in admitted)
    return over, min(map(len, admitted)) / bound(RULE, lasted)


def over_admission_bound(away: float, *, workers: int, offered: float) -> float:
    """Return by how many requests a window may exceed `RULE`, if Redis was away for `away` s."""
    unaware = away + STATE_TIMEOUT + 1.0
    return failover_bound(RULE, share=SHARE, workers=workers, unaware=unaware, offered=offered)
