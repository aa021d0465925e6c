"""Writes the state of a caller's limits as HTTP header fields.

`RateLimit` and `RateLimit-Policy` (IETF draft) list every policy. `x-ratelimit-*` fields show, for
each unit, the policy with the fewest remaining units. The times in these fields are Go durations,
as OpenAI's clients expect. `Retry-After` is at most 120 s, because clients do not wait longer.
`x-ratelimit-reset-*` has no such bound.
"""

from functools import lru_cache
from math import ceil
from typing import Final

from sluicegate.gateway.errors import MAX_RETRY_AFTER
from sluicegate.gateway.periods import PERIODS
from sluicegate.gateway.rate_limit.base import Decision, PolicyState
from sluicegate.gateway.rate_limit.refusals import MOMENT
from sluicegate.gateway.types import Rule

MILLISECONDS: Final = tuple(b"%dms" % number if number else b"0s" for number in range(1000))
"""Go's notation of durations below one second, indexed by milliseconds."""
_FRACTIONS = (b"s", *[f".{number:03d}".rstrip("0").encode() + b"s" for number in range(1, 1000)])
"""The text after the whole seconds of a Go duration, indexed by the remaining milliseconds."""
Headers = list[tuple[bytes, bytes]]
_DAY = 86_400


def rate_limit_lines(decision: Decision) -> bytes:
    """Return the header lines for the response to a request that `decision` admits or refuses."""
    policies = decision.policies
    template = lines_for(tuple([state.rule for state in policies])) if decision.allowed else b""
    if not template:
        return b"".join([b"%b: %b\r\n" % field for field in rate_limit_headers(decision)])
    values: list[bytes | int] = []
    for state in policies:
        values += (state.remaining, ceil(state.reset))
    for state in policies:
        values += (state.remaining, go_duration(state.reset))
    return template % tuple(values)


def rate_limit_headers(decision: Decision) -> Headers:
    """Return the header fields for the response to a request that `decision` admits or refuses."""
    policies = decision.policies
    headers: Headers = []
    if policies:
        rules = []
        parts = []
        for one in policies:
            rules.append(one.rule)
            parts.append(f'"{one.rule.name}";r={one.remaining};t={ceil(one.reset)}')
        headers.append((b"ratelimit-policy", _policy_field(tuple(rules))))
        headers.append((b"ratelimit", ", ".join(parts).encode()))
        for state in _tightest(policies):
            limit, remaining, reset = _names(state.rule.unit)
            headers.append((limit, b"%d" % state.rule.limit))
            headers.append((remaining, b"%d" % state.remaining))
            headers.append((reset, go_duration(state.reset)))
    if _is_final(decision):
        headers.append((b"x-should-retry", b"false"))
    elif not decision.allowed:
        wait = min(decision.retry_after, MAX_RETRY_AFTER)
        headers.append((b"retry-after", b"%d" % max(1, ceil(wait))))
        headers.append((b"retry-after-ms", b"%d" % max(1, ceil(wait * 1000))))
    return headers


def _is_final(decision: Decision) -> bool:
    """Return whether no retry within a day can succeed."""
    rule = decision.violated
    if rule is None or not rule.period or decision.impossible:
        return decision.impossible
    return PERIODS[rule.period].seconds > _DAY and decision.retry_after > MOMENT


def go_duration(seconds: float) -> bytes:
    """Return `seconds` in Go's notation, rounded up to milliseconds: `250ms`, `6.4s`, `6m0s`."""
    milliseconds = ceil(seconds * 1000)
    if milliseconds < 1000:  # noqa: PLR2004 - a second
        return MILLISECONDS[milliseconds] if milliseconds > 0 else b"0s"
    if milliseconds < 60_000:  # noqa: PLR2004 - a minute
        return b"%d%b" % (milliseconds // 1000, _FRACTIONS[milliseconds % 1000])
    return _go_duration(milliseconds)


@lru_cache(maxsize=65_536)
def _go_duration(milliseconds: int) -> bytes:
    whole, fraction = divmod(milliseconds, 1000)
    tail = f".{fraction:03d}".rstrip("0") if fraction else ""
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}{tail}s".encode()
    if minutes:
        return f"{minutes}m{rest}{tail}s".encode()
    return f"{rest}{tail}s".encode()


def _tightest(policies: tuple[PolicyState, ...]) -> list[PolicyState]:
    """Return, for each unit, the policy with the fewest remaining units."""
    least: dict[str, PolicyState] = {}
    for state in policies:
        unit = state.rule.unit
        found = least.get(unit)
        if found is None or state.remaining < found.remaining:
            least[unit] = state
    return list(least.values())


@lru_cache(maxsize=4096)
def lines_for(rules: tuple[Rule, ...]) -> bytes:
    """Return a `%` template of the header lines for `rules`.

    The result is empty if there are no rules, or if two rules have the same unit.

    The template's first arguments are two for each rule: the remaining units, and the seconds until
    the reset. Two more arguments for each rule follow: the remaining units again, and the time
    until the reset as a Go duration.
    """
    if not rules or len({rule.unit for rule in rules}) < len(rules):
        return b""
    shown = ", ".join(f'"{rule.name}";r=%d;t=%d' for rule in rules)
    lines = [b"ratelimit-policy: %b\r\n" % _policy_field(rules)]
    lines.append(b"ratelimit: %b\r\n" % shown.encode())
    for rule in rules:
        limit, remaining, reset = _names(rule.unit)
        lines.append(b"%b: %d\r\n" % (limit, rule.limit))
        lines.append(b"%b: %%d\r\n%b: %%b\r\n" % (remaining, reset))
    return b"".join(lines)


@lru_cache(maxsize=4096)
def _policy_field(rules: tuple[Rule, ...]) -> bytes:
    return ", ".join(f'"{rule.name}";q={rule.limit}{_window(rule)}' for rule in rules).encode()


def _window(rule: Rule) -> str:
    """Return the `w` parameter of a policy; empty for `concurrent`, which has no window."""
    if rule.period:
        return f";w={PERIODS[rule.period].seconds}"  # the draft requires a window in seconds
    return f";w={ceil(rule.window)}" if rule.window else ""


@lru_cache(maxsize=64)
def _names(unit: str) -> tuple[bytes, bytes, bytes]:
    return (
        f"x-ratelimit-limit-{unit}".encode(),
        f"x-ratelimit-remaining-{unit}".encode(),
        f"x-ratelimit-reset-{unit}".encode(),
    )
