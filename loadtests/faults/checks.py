"""Finds side effects of a fault on attempts, waits, circuit breakers and limits."""

from collections.abc import Iterator, Sequence

from loadtests.faults.catalogue import Case, Check
from loadtests.faults.judge import LIMITED, percentile
from loadtests.faults.processes import RULE, SHARE, STATE_TIMEOUT
from loadtests.windows import AdmittedRequest, bound, failover_bound, most_over_the_limit
from testing.redis_deployments import FAILOVER_TIMEOUT

_MOST_ATTEMPTS = 1.2
_ALLOWED = 0.020
"""Seconds by which a fault of a Redis may raise the p99 of misses."""
LONGEST_FAILOVER = 1.5 + 2 * FAILOVER_TIMEOUT + 4.0
"""The most seconds until there is a new primary. Sentinels repeat an election without a winner
once."""


def few_attempts(case: Case) -> Iterator[str]:
    """Find out whether items took too many attempts on average, including retries and hedges."""
    grown = _growth(case)
    first = grown["computed"] + grown["failed"]
    if first <= 0:
        yield "no worker told of its items"
        return
    attempts = (first + grown["retried"] + grown["hedged"]) / first
    case.figures["attempts"] = round(attempts, 3)
    if attempts > _MOST_ATTEMPTS:
        yield f"{attempts:.2f} attempts per item"


def misses_go_on(*parts: str) -> Check:
    """Return a check that finds misses that were slower during a Redis fault than before."""

    def check(case: Case) -> Iterator[str]:
        if case.part not in parts:
            return
        misses = [each for each in case.sent if not each.is_repeat]
        before = percentile([each for each in misses if each.came < case.begun], 0.99)
        during = percentile([each for each in misses if case.begun <= each.due < case.ended], 0.99)
        after = percentile([each for each in misses if each.due >= case.ended], 0.99)
        # Other work on the machine slows the misses before, during and after the fault.
        usual = max(before, after)
        case.figures["miss_p99_added_ms"] = round(1000 * (during - usual), 1)
        if during > usual + _ALLOWED:
            yield f"p99 of misses rose from {usual:.3f} to {during:.3f} s"

    return check


def breaker_opens(*parts: str) -> Check:
    """Return a check that fails if a Redis of `parts` was away but no circuit breaker opened."""

    def check(case: Case) -> Iterator[str]:
        if case.part in parts:
            opened = case.figures["breaker_opened"] = _growth(case)[f"{case.part} breaker"]
            if opened <= 0:
                yield f"the breaker of the {case.part} Redis did not open"

    return check


def hits_are_answered(case: Case) -> Iterator[str]:
    """Find memory hits that were refused with no backend up, and refusals without `Retry-After`."""
    down = [each for each in case.sent if case.begun <= each.due < case.ended]
    missed = sum(each.has_failed for each in down if each.is_repeat)
    # The probes take a moment to notice that no backend is up.
    refused = [each for each in down if each.due > case.begun + 1.0 and each.status == 503]
    silent = sum(not each.retry_after for each in refused)
    after = [each.due - case.ended for each in case.sent if each.has_failed]
    case.figures.update(
        refused=len(refused),
        slowest_refusal=round(percentile(refused, 1.0), 3),
        refused_after=round(max([0.0, *after]), 1),
    )
    if missed:
        yield f"{missed} memory hits were refused"
    if silent:
        yield f"{silent} refusals have no `Retry-After`"


def shares(case: Case) -> Sequence[str]:
    """Record how many items each backend answered."""
    grown = _growth(case).items()
    case.figures["items"] = {name[6:]: int(n) for name, n in grown if name.startswith("items ")}
    return ()


def limits_hold(case: Case) -> Iterator[str]:
    """Find a window with more requests than the limit plus the excess that a failover may cause."""
    away = case.topology.notes["away"]
    over, _ = worst_window(case)
    rate = len(case.sent) / len(case.topology.keys) / (case.sent[-1].due - case.sent[0].due)
    allowed = over_admission_bound(away, workers=case.topology.setup.workers, offered=rate)
    case.figures.update(away=round(away, 1), over=round(over, 1), bound=round(allowed, 1))
    if over > allowed:
        yield f"{over:.1f} requests over the limit"
    if away > LONGEST_FAILOVER:
        yield f"{away:.1f} s without a primary"


def worst_window(case: Case) -> tuple[float, float]:
    """Return by how many requests the worst window of a limited tenant exceeded `RULE`.

    Also return the fraction of its limit that the tenant with the fewest admitted requests got.
    """
    lasted = case.sent[-1].due - case.sent[0].due

    def admitted(tenant: str) -> list[AdmittedRequest]:
        mine = (each for each in case.sent if each.tenant == tenant and each.status == 200)
        return [AdmittedRequest(each.due, each.came) for each in mine]

    found = [admitted(tenant) for tenant in case.topology.keys if tenant.startswith(LIMITED)]
    over = max(most_over_the_limit(each, RULE) for each in found)
    return over, min(map(len, found)) / bound(RULE, lasted)


def over_admission_bound(away: float, *, workers: int, offered: float) -> float:
    """Return by how many requests a window may exceed `RULE` if Redis was away for `away` s."""
    unaware = away + STATE_TIMEOUT + 1.0
    return failover_bound(RULE, share=SHARE, workers=workers, unaware=unaware, offered=offered)


def _growth(case: Case) -> dict[str, float]:
    """Return the increase of each counter. The counter of a killed process starts again at 0."""
    start, end = case.counters["start"], case.counters["end"]
    return {
        name: count - start.get(name, 0.0) if count >= start.get(name, 0.0) else count
        for name, count in end.items()
    }
