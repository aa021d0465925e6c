"""Defines the types of recording rules and alerts, and of the cases that test an alert."""

from typing import Literal

import msgspec

Severity = Literal["page", "ticket"]


class Series(msgspec.Struct, frozen=True):
    """A series of a test: a selector, and values in promtool's notation, one each minute."""

    selector: str
    values: str


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Series after which an alert fires, or does not, at a time such as `15m`."""

    series: tuple[Series, ...]
    at: str
    labels: dict[str, str] = {}
    """Of the alert that fires, besides name and severity."""


class Recording(msgspec.Struct, frozen=True):
    """A query whose result is kept under a name `level:metric:operations`."""

    record: str
    expr: str


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that an operator must act on; its page is docs/runbooks/<name>.md."""

    name: str
    expr: str
    severity: Severity
    summary: str
    """One line, with `{{ $labels.x }}` for labels of the result."""
    description: str
    """What callers see, and the first thing to do."""
    lasts: str = "0m"
    """How long the expression must hold."""
    fires: Case
    quiet: Case


class Group(msgspec.Struct, frozen=True):
    """Rules that Prometheus evaluates together, in order."""

    name: str
    rules: tuple[Recording | Alert, ...]
