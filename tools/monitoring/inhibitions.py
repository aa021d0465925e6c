"""Renders the inhibition rules of Alertmanager: alerts that only follow from another one."""

import msgspec

from tools.monitoring.yaml_file import render


class Inhibition(msgspec.Struct, frozen=True, kw_only=True):
    """Says that notifications of `targets` are not sent while `source` fires.

    That holds for alerts that have the same values of the labels `equal`.
    """

    source: str
    targets: tuple[str, ...]
    equal: tuple[str, ...]


INHIBITIONS = (
    # As the drill of a full disk has them. Not of `DataDiskNearlyFull`, which fires for hours
    # while everything can be written: what fails meanwhile has another cause.
    Inhibition(
        source="DataDiskFull",
        targets=(
            "DataDiskNearlyFull",
            "StateRedisDown",
            "LimitsDecidedLocally",
            "WorkerFailsRepeatedly",
        ),
        equal=("instance",),
    ),
)


def alertmanager() -> bytes:
    """Return an example of a configuration of Alertmanager, which sends nothing anywhere."""
    return render(
        {
            "route": {"receiver": "nobody", "group_by": ["alertname"]},
            "receivers": [{"name": "nobody"}],
            "inhibit_rules": [_rule(each) for each in INHIBITIONS],
        }
    )


def _rule(inhibition: Inhibition) -> dict[str, object]:
    return {
        "source_matchers": [f'alertname="{inhibition.source}"'],
        "target_matchers": [f'alertname=~"{"|".join(inhibition.targets)}"'],
        "equal": list(inhibition.equal),
    }
