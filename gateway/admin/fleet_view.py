"""What the workers report of backends, put together."""

from collections.abc import Mapping

import msgspec

from gateway.runtime.control import Control


class BackendView(msgspec.Struct, frozen=True, kw_only=True):
    """A backend as a worker saw it last: revisions by model, and what is wrong with models."""

    backend: str
    region: str = ""
    health: str = ""
    models: dict[str, str] = {}
    problems: dict[str, str] = {}
    missing: list[str] = []
    trouble: str = ""


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    fleet: list[BackendView] = []


async def reported_backends(control: Control) -> dict[str, BackendView]:
    """Return each backend as some live worker sees it, by `merge_reports`.

    Raises:
        DependencyUnavailable: the state Redis cannot be reached.
    """
    return merge_reports(await control.reports())


def merge_reports(reports: Mapping[str, bytes]) -> dict[str, BackendView]:
    """Return the backends of workers' reports (JSON), by id.

    Who hears from a backend has the say, and of those, who tells what it serves: workers of the
    version before do not.
    """
    found: dict[str, BackendView] = {}
    for worker in sorted(reports):
        for view in msgspec.json.decode(reports[worker], type=_Report).fleet:
            known = found.get(view.backend)
            if known is None or _weight(view) > _weight(known):
                found[view.backend] = view
    return found


def _weight(view: BackendView) -> tuple[bool, bool]:
    return view.health == "ready", bool(view.models or view.problems)
