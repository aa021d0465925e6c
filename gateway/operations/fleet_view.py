"""Merges the workers' reports about backends into one view."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:  # see `gateway.operations.context`
    from sluicegate.gateway.runtime.control import Control

LARGEST_SKEW: Final = 2.0
"""Seconds by which clocks may differ. The alert `ClockSkewed` uses the same value."""
Json = dict[str, Any]  # Any: workers' reports are passed on unchanged


class BackendView(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a backend's state as a worker last saw it.

    `models` maps each model to its revision. `problems` maps each broken model to its error.
    """

    backend: str
    region: str = ""
    health: str = ""
    models: dict[str, str] = {}
    problems: dict[str, str] = {}
    missing: list[str] = []
    trouble: str = ""


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    fleet: list[BackendView] = []
    clock: dict[str, float] = {}


async def reported(control: "Control", field: str) -> Json:
    """Return, for each live worker, one field of its last report."""
    reports = await control.reports()
    return {worker: msgspec.json.decode(text).get(field) for worker, text in reports.items()}


async def reported_backends(control: "Control") -> dict[str, BackendView]:
    """Return the backends that live workers report, merged by `merge_reports`.

    Raises:
        DependencyUnavailable: the Redis with the gateway's state cannot be reached.
    """
    return merge_reports(await control.reports())


def merge_reports(reports: Mapping[str, bytes]) -> dict[str, BackendView]:
    """Merge workers' reports (JSON); return backends by id.

    For each backend, the function prefers reports of workers that reach the backend. Among these
    reports, it prefers reports that list models, because workers of the previous version list no
    models.
    """
    merged: dict[str, BackendView] = {}
    for worker in sorted(reports):
        for view in msgspec.json.decode(reports[worker], type=_Report).fleet:
            previous = merged.get(view.backend)
            if previous is None or _weight(view) > _weight(previous):
                merged[view.backend] = view
    return merged


def clock_problems(reports: Mapping[str, bytes]) -> list[str]:
    """Return a line for each worker whose clock differs too much from a server's clock."""
    return [
        f"clock: {worker} and {server} differ by {skew:.1f} s"
        for worker in sorted(reports)
        for server, skew in msgspec.json.decode(reports[worker], type=_Report).clock.items()
        if skew > LARGEST_SKEW
    ]


def _weight(view: BackendView) -> tuple[bool, bool]:
    return view.health == "ready", bool(view.models or view.problems)
