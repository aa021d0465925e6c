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


async def backends_seen(control: Control) -> dict[str, BackendView]:
    """Return each backend as some live worker sees it; one that hears from it has the say.

    Raises:
        DependencyUnavailable: the state Redis cannot be reached.
    """
    return put_together(await control.reports())


def put_together(reports: Mapping[str, bytes]) -> dict[str, BackendView]:
    """Return the backends of workers' reports (JSON), by id."""
    found: dict[str, BackendView] = {}
    for worker in sorted(reports):
        for view in msgspec.json.decode(reports[worker], type=_Report).fleet:
            known = found.get(view.backend)
            if known is None or (known.health != "ready" and view.health == "ready"):
                found[view.backend] = view
    return found
