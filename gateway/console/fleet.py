"""Combines the workers' reports about each backend of the configuration document."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from sluicegate.gateway.config.document import BackendConfig
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.runtime.control import Control
from sluicegate.wire.protocol import GpuState, ModelState

_MEGA = 1e6


class EndpointReport(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's report about a backend."""

    backend: str
    health: str = ""
    url: str = ""
    dns: str = ""
    trouble: str = ""
    missing: list[str] = []
    models: dict[str, str] = {}
    problems: dict[str, str] = {}
    states: dict[str, ModelState] = {}
    gpu: GpuState | None = None
    in_flight: int = 0
    ejected_for: float = 0.0
    share: float = 0.0
    finish_time: float = 0.0
    calls: int = 0
    failures: int = 0


class RefusalReport(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a tenant's requests per second that a worker refuses because of limits."""

    tenant: str
    per_second: float


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    fleet: list[EndpointReport] = []
    refused_tenants: list[RefusalReport] = []


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend of the configuration document, with all workers' reports about the backend."""

    id: str
    region: str
    url: str
    pool: str
    drained: bool
    is_entry: bool
    """Whether the object stands for a DNS entry of the document, because no worker could resolve
    the DNS name."""
    seen: Sequence[EndpointReport]
    """The workers' reports."""

    @property
    def state(self) -> str:
        """The backend's state in a word or two, such as `ready` or `drained`."""
        if self.drained:
            return "drained"
        if not self.seen:
            return "not seen"
        ready = sum(each.health == "ready" for each in self.seen)
        if ready < len(self.seen):
            health = next(each.health for each in self.seen if each.health != "ready")
            unready = health.replace("_", " ")
            return unready if not ready else f"{unready} for {len(self.seen) - ready} workers"
        if self.ejected_for:
            return "ejected"
        return "broken models" if self.problems else "ready"

    @property
    def is_usable(self) -> bool:
        """Whether any worker may send requests to the backend."""
        return not self.drained and bool(self._ready)

    @property
    def mood(self) -> str:
        """How bad the state is: `good`, `warn` or `bad`."""
        if self.state == "ready":
            return "good"
        return "warn" if self.drained or self.state == "broken models" else "bad"

    @property
    def reason(self) -> str:
        """Why the backend is not ready, or what is wrong with its models. Empty if unknown."""
        for each in self.seen:
            if each.missing or each.trouble:
                return "; ".join(each.missing) or each.trouble
        return "; ".join(f"{name}: {text}" for name, text in sorted(self.problems.items()))

    @property
    def problems(self) -> Mapping[str, str]:
        """The errors of broken models in the backend's repository, by model."""
        return {name: text for each in self.seen for name, text in each.problems.items()}

    @property
    def models(self) -> Mapping[str, str]:
        """The revisions that the backend serves, by model."""
        return {name: revision for each in self.seen for name, revision in each.models.items()}

    @property
    def model_names(self) -> list[str]:
        """The names of the models that the backend serves, in alphabetical order."""
        return sorted(self.models, key=str.lower)

    @property
    def states(self) -> Mapping[str, ModelState]:
        """The state of each model; empty if the backend does not load models on demand."""
        return next((each.states for each in self._ready if each.states), {})

    @property
    def loaded(self) -> int:
        """How many of the backend's models are loaded."""
        states = self.states
        return sum(states.get(name, "loaded") == "loaded" for name in self.models)

    @property
    def gpu(self) -> GpuState | None:
        """The state of the backend's GPU, according to a worker's last probe."""
        return next((each.gpu for each in self._ready if each.gpu is not None), None)

    @property
    def ejected_for(self) -> float:
        """Seconds until no worker keeps the backend ejected (out of use after failures)."""
        return max((each.ejected_for for each in self.seen), default=0.0)

    @property
    def share(self) -> float | None:
        """The fraction of its full traffic that the backend gets. It is below 1 during slow start.

        The value is `None` if the backend is drained or not ready.
        """
        return None if self.drained else min((each.share for each in self._ready), default=None)

    @property
    def finish(self) -> float | None:
        """The longest time, in seconds, that any worker predicts for an item that is sent now.

        The value is `None` if the backend is drained or not ready.
        """
        worst = max((each.finish_time for each in self._ready), default=None)
        return None if self.drained or worst is None or worst > _MEGA else worst

    @property
    def in_flight(self) -> int:
        """The number of items that all workers have in flight at the backend."""
        return sum(each.in_flight for each in self.seen)

    @property
    def calls(self) -> int:
        """The number of calls since the workers started."""
        return sum(each.calls for each in self.seen)

    @property
    def failures(self) -> int:
        """The number of failed calls since the workers started."""
        return sum(each.failures for each in self.seen)

    @property
    def _ready(self) -> list[EndpointReport]:
        """The reports of workers that found the backend ready.

        Only the predictions of these workers are meaningful.
        """
        return [each for each in self.seen if each.health == "ready"]


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """All backends in the order of the document, and the workers that report about backends."""

    regions: dict[str, list[Backend]]
    workers: list[str]
    configured: frozenset[str] = frozenset()
    """The models that the document names, whether a backend serves them or not."""
    refused: Mapping[str, float] = {}
    """The number of requests per second that limits refuse, for the tenants with the most such
    requests."""

    @property
    def backends(self) -> Iterable[Backend]:
        """All backends."""
        return (backend for region in self.regions.values() for backend in region)

    def find(self, region: str, backend: str) -> Backend | None:
        """Return a backend of a region, or `None` if it does not exist."""
        return next((b for b in self.regions.get(region, ()) if b.id == backend), None)


async def read_fleet(control: Control, active: ActiveDocumentReader) -> FleetView:
    """Read the configuration document and the workers' reports about backends.

    Raises:
        ConfigurationError: there is no valid document.
        DependencyUnavailable: the Redis with the reports cannot be reached.
    """
    reports = await control.reports()
    document = await active.document()
    drained = await control.drained()
    seen: defaultdict[str, list[EndpointReport]] = defaultdict(list)
    refused: defaultdict[str, float] = defaultdict(float)
    for worker in sorted(reports):
        report = msgspec.json.decode(reports[worker], type=_Report)
        for view in report.fleet:
            seen[view.backend].append(view)
        for each in report.refused_tenants:
            refused[each.tenant] += each.per_second
    regions = {
        region.name: [
            Backend(
                id=name,
                region=region.name,
                url=url,
                pool=pool.name,
                drained=not drained.isdisjoint({name, entry.id}),
                is_entry=bool(entry.dns) and name == entry.id,
                seen=seen.get(name, ()),
            )
            for pool in region.pools
            for entry in pool.backends
            for name, url in _found(entry, seen)
        ]
        for region in document.regions
    }
    return FleetView(
        regions=regions,
        workers=sorted(reports),
        configured=frozenset(document.models),
        refused=refused,
    )


def _found(
    entry: BackendConfig, seen: Mapping[str, Sequence[EndpointReport]]
) -> list[tuple[str, str]]:
    """Return the id and the URL of each backend of an entry of the configuration document."""
    if not entry.dns:
        return [(entry.id, entry.url)]
    found = [
        (name, views[0].url)
        for name, views in seen.items()
        if views[0].dns and name.partition("@")[0] == entry.id
    ]
    return sorted(found) or [(entry.id, entry.dns)]
