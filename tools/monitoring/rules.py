"""Reads the recording rules and alerts of deploy/prometheus-rules.yaml."""

from functools import cache

import msgspec

from tools.monitoring.files import RULES


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A recording rule, which has `record`, or an alert, which has the other fields."""

    expr: str
    record: str = ""
    alert: str = ""
    lasts: str = msgspec.field(default="0m", name="for")
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The name of the recorded series, or of the alert."""
        return self.record or self.alert


class Group(msgspec.Struct, frozen=True):
    """Rules that Prometheus evaluates together, in order."""

    name: str
    rules: list[Rule]


@cache
def groups() -> list[Group]:
    """Return all groups of rules."""
    return msgspec.yaml.decode(RULES.read_bytes(), type=dict[str, list[Group]])["groups"]


def alerts() -> list[Rule]:
    """Return every alert, in the order of the file."""
    return [rule for group in groups() for rule in group.rules if rule.alert]
