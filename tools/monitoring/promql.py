"""Writes the forms of PromQL that dashboards and rules repeat."""

RATE_INTERVAL = "$__rate_interval"
"""What Grafana replaces by four scrape intervals, or more where a point covers more."""


def rate(metric: str, by: str = "", where: str = "", over: str = RATE_INTERVAL) -> str:
    """Return the rate of a counter, added up over all but the labels `by`."""
    return f"{aggregate('sum', by)} (rate({metric}{selector(where)}[{over}]))"


def quantile(
    share: float, metric: str, by: str = "", where: str = "", over: str = RATE_INTERVAL
) -> str:
    """Return a quantile of the histogram `metric` for each value of the labels `by`."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', labels, where, over)})"


def ratio(part: str, whole: str) -> str:
    """Return `part / whole`, and 0 where the whole is 0."""
    return f"{part} / ({whole} > 0)"


def grown(counter: str, by: str, over: str) -> str:
    """Return how much a counter grew, by labels; one that has just appeared has grown from 0.

    `increase` sees nothing of a first value, such as that of a reason that never was before, or of
    a process that found a loss when it started.
    """
    grown_since = f"sum by ({by}) (increase({counter}[{over}]))"
    return f"({grown_since} > 0 or sum by ({by}) ({counter} unless {counter} offset {over}))"


def aggregate(operator: str, by: str = "") -> str:
    """Return an aggregation operator with its labels."""
    return f"{operator} by ({by})" if by else operator


def selector(where: str) -> str:
    """Return matchers in braces, or nothing."""
    return f"{{{where}}}" if where else ""
