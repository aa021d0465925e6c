"""Holds the service level objectives and their recording rules and burn-rate alerts.

After "Alerting on SLOs" of The Site Reliability Workbook (Beyer et al., O'Reilly 2018, chapter 5,
"6: Multiwindow, Multi-Burn-Rate Alerts"): with 30 days of budget, 14.4 times the rate over an hour
spends 2 % of it, 6 times over six hours 5 %, once over three days 10 %. The short window, a twelfth
of the long one, ends the alert soon after the failure has ended.
"""

import msgspec

from tools.monitoring.rule import Alert, Case, Group, Recording, Series

AVAILABILITY = 0.999
"""Share of requests that do not fail by our fault, over 30 days."""
LATENCY = 0.99
"""Share of answered requests that take at most `LATENCY_BOUND`, over 30 days."""
LATENCY_BOUND = 0.25
_LEAST_BAD = 10
"""Bad requests in the long window below which nothing fires: one of twenty is no trend."""
_DURATION = "sluicegate_request_duration_seconds"
_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


class Burn(msgspec.Struct, frozen=True):
    """A rate of spending the budget, over a long and a short window."""

    factor: float
    long: str
    short: str


FAST = (Burn(14.4, "1h", "5m"), Burn(6.0, "6h", "30m"))
SLOW = (Burn(3.0, "1d", "2h"), Burn(1.0, "3d", "6h"))


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """A share of requests that shall be good, for each model."""

    name: str
    target: float
    all_requests: str
    """Selector of the counter of requests that the objective is about."""
    bad: str
    """Query of the bad ones a second, with `WINDOW` for the window."""

    def ratio(self, window: str) -> str:
        """Return the name of the recorded share of bad requests."""
        return f"model:sluicegate_{self.name}_errors:ratio_rate{window}"

    def count(self, window: str) -> str:
        """Return the name of the recorded number of bad requests a second."""
        return f"model:sluicegate_{self.name}_errors:rate{window}"


_ANSWERABLE = 'outcome!~"client_error|rate_limited"'
OBJECTIVES = {
    "availability": Objective(
        name="availability",
        target=AVAILABILITY,
        all_requests=f"{_DURATION}_count{{{_ANSWERABLE}}}",
        bad=f"sum by (model) (rate({_DURATION}_count"
        '{outcome=~"server_error|overloaded|deadline"}[WINDOW]))',
    ),
    "latency": Objective(
        name="latency",
        target=LATENCY,
        all_requests=f'{_DURATION}_count{{outcome="ok"}}',
        bad=f'sum by (model) (rate({_DURATION}_count{{outcome="ok"}}[WINDOW]))'
        f" - sum by (model) (rate({_DURATION}_bucket"
        f'{{outcome="ok", le="{LATENCY_BOUND}"}}[WINDOW]))',
    ),
}


def recordings() -> tuple[Group, ...]:
    """Return the groups of recording rules, one for each objective."""
    return tuple(
        Group(f"sluicegate-{each.name}-objective", tuple(_recorded(each)))
        for each in OBJECTIVES.values()
    )


def _recorded(objective: Objective) -> list[Recording]:
    rules = []
    for window in _WINDOWS:
        bad = objective.bad.replace("WINDOW", window)
        whole = f"sum by (model) (rate({objective.all_requests}[{window}]))"
        rules.append(Recording(objective.count(window), f"({bad}) or {whole} * 0"))
        share = f"{objective.count(window)} / ({whole} > 0)"
        rules.append(Recording(objective.ratio(window), share))
    return rules


def burns(objective: Objective, rates: tuple[Burn, ...]) -> str:
    """Return the expression of an alert: both windows of one of the rates burn so fast."""
    budget = 1 - objective.target
    return " or ".join(
        f"({objective.ratio(each.long)} > {each.factor * budget:.6g}"
        f" and {objective.ratio(each.short)} > {each.factor * budget:.6g}"
        f" and {objective.count(each.long)} * {_SECONDS[each.long]} > {_LEAST_BAD})"
        for each in rates
    )


_SECONDS = {"1h": 3600, "6h": 21_600, "1d": 86_400, "3d": 259_200}


def _requests(outcome: str, each_minute: int, minutes: int = 5000) -> Series:
    selector = f'{_DURATION}_count{{instance="gateway-1", model="sentiment", outcome="{outcome}"}}'
    return Series(selector, f"0+{each_minute}x{minutes}")


def _within_bound(each_minute: int, minutes: int = 5000) -> Series:
    labels = f'instance="gateway-1", model="sentiment", outcome="ok", le="{LATENCY_BOUND}"'
    return Series(f"{_DURATION}_bucket{{{labels}}}", f"0+{each_minute}x{minutes}")


_MODEL = {"model": "sentiment"}
ALERTS = (
    Alert(
        name="AvailabilityBudgetBurnsFast",
        expr=burns(OBJECTIVES["availability"], FAST),
        severity="page",
        summary="Requests for {{ $labels.model }} fail so often that the month's budget of errors"
        " is spent within days",
        description="Callers get 5xx. Open the incident page and find out which part fails.",
        fires=Case(
            series=(_requests("ok", 980, 80), _requests("server_error", 20, 80)),
            at="70m",
            labels=_MODEL,
        ),
        quiet=Case(series=(_requests("ok", 9995), _requests("server_error", 5)), at="70m"),
    ),
    Alert(
        name="AvailabilityBudgetBurnsSlowly",
        expr=burns(OBJECTIVES["availability"], SLOW),
        severity="ticket",
        summary="Requests for {{ $labels.model }} fail more often than the objective allows",
        description="Few callers notice. Find the cause within days.",
        fires=Case(
            series=(_requests("ok", 9980), _requests("deadline", 20)), at="4410m", labels=_MODEL
        ),
        quiet=Case(series=(_requests("ok", 9995), _requests("deadline", 5)), at="4410m"),
    ),
    Alert(
        name="LatencyBudgetBurnsFast",
        expr=burns(OBJECTIVES["latency"], FAST),
        severity="page",
        summary=f"Many requests for {{{{ $labels.model }}}} take longer than {LATENCY_BOUND} s",
        description="Callers wait. Compare the cache page with the region page.",
        fires=Case(series=(_requests("ok", 1000), _within_bound(700)), at="70m", labels=_MODEL),
        quiet=Case(series=(_requests("ok", 1000), _within_bound(995)), at="70m"),
    ),
    Alert(
        name="LatencyBudgetBurnsSlowly",
        expr=burns(OBJECTIVES["latency"], SLOW),
        severity="ticket",
        summary=f"More requests for {{{{ $labels.model }}}} take longer than {LATENCY_BOUND} s than"
        " the objective allows",
        description="Few callers notice. Look for a backend that is slower than others.",
        fires=Case(series=(_requests("ok", 1000), _within_bound(980)), at="4410m", labels=_MODEL),
        quiet=Case(series=(_requests("ok", 1000), _within_bound(995)), at="4410m"),
    ),
)
