"""Holds the models that a backend serves, admits calls to them, and reports its state."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from sluicegate.backends.algorithms.base import ModelAlgorithms
from sluicegate.backends.algorithms.hosts import AlgorithmHosts
from sluicegate.backends.algorithms.shadow import Mirror
from sluicegate.backends.batching.device import Device
from sluicegate.backends.errors import ModelNotFound, NotReady, RevisionMismatch
from sluicegate.backends.open_inference.address import RemoteModelServer
from sluicegate.backends.pipelines.encoder import Encoder
from sluicegate.backends.pipelines.head import Head
from sluicegate.backends.serving.call_work import CallWork
from sluicegate.backends.serving.item_memory import open_memory
from sluicegate.backends.serving.residency import (
    DeclaredEncoder,
    NotLoaded,
    Residency,
    RunningEncoder,
)
from sluicegate.backends.serving.revision_counts import RevisionCounts
from sluicegate.backends.serving.work_estimates import WorkEstimates
from sluicegate.backends.types import Snapshot, padding_waste_ratio
from sluicegate.wire.plans import NO_MODEL, Assignment
from sluicegate.wire.protocol import (
    Call,
    GpuState,
    ModelInfo,
    ModelState,
    Report,
    ServingState,
    encode_frame,
)

# The maximum age of a load report in seconds. A batch takes longer, so a newer report would hardly
# differ.
_REPORT_AGE = 0.01

# The (name, revision, profile) of a model that a call names.
Variant = tuple[str, str, str]


class ModelSet(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the models of a repository, their encoders, and the problems of broken models.

    Models in `blocked` are broken because a model that they build on is broken. `needs` maps each
    model to the names of all models that it needs, including its own name. `kept` has earlier
    versions of models whose present files are broken.
    """

    served_models: Mapping[str, ModelAlgorithms]
    pipelines: Mapping[str, Encoder | Head]
    encoders: Sequence[DeclaredEncoder]
    problems: Mapping[str, str]
    blocked: frozenset[str] = frozenset()
    needs: Mapping[str, frozenset[str]] = {}
    kept: Mapping[str, "ModelSetEntry"] = {}

    def sources(self) -> dict[str, "ModelSetEntry"]:
        """Return every model by name, with the model set that it belongs to."""
        own = {
            name: ModelSetEntry(served_model=served_model, model_set=self)
            for name, served_model in self.served_models.items()
        }
        return {**self.kept, **own}

    def find(self, name: str) -> "ModelSetEntry | None":
        """Return a model together with its model set, or `None`."""
        served_model = self.served_models.get(name)
        if served_model is not None:
            return ModelSetEntry(served_model=served_model, model_set=self)
        return self.kept.get(name)

    def subset(self, name: str) -> "ModelSet":
        """Return the subset of pipelines and encoders that the model `name` needs."""
        needed = self.needs.get(name, frozenset())
        return ModelSet(
            served_models={},
            pipelines={n: pipeline for n, pipeline in self.pipelines.items() if n in needed},
            encoders=[encoder for encoder in self.encoders if encoder.name in needed],
            problems={},
            needs={name: needed},
        )

    def declared(self) -> list[DeclaredEncoder]:
        """Return all encoders. The encoders of kept models come last."""
        used = [self, *(kept.model_set for kept in self.kept.values())]
        return list(dict.fromkeys(e for model_set in used for e in model_set.encoders))

    def all_encoders(self) -> list[RunningEncoder]:
        """Return all loaded encoders. The encoders of kept models come last."""
        return [each.running for each in self.declared() if each.running is not None]

    def infos(self) -> list[ModelInfo]:
        """Return the info of every model."""
        return [source.served_model.info for source in self.sources().values()]


class ModelSetEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a model and the model set that it belongs to."""

    served_model: ModelAlgorithms
    model_set: ModelSet

    @property
    def is_loaded(self) -> bool:
        """Whether all encoders that the model needs are loaded."""
        return all(each.running is not None for each in self.encoders())

    def encoders(self) -> list[DeclaredEncoder]:
        """Return all encoders that the model needs, its own encoder first."""
        models, own = self.model_set, self.served_model.encoder
        needed = models.needs.get(self.served_model.info.name, frozenset()) | {own}
        return sorted([e for e in models.encoders if e.name in needed], key=lambda e: e.name != own)


class CallsInFlight:
    """Counts calls in flight; use it as a context manager around a call."""

    def __init__(self) -> None:
        self.count = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def begin(self) -> None:
        """Count a call."""
        if not self.count:
            self.idle.clear()
        self.count += 1

    def end(self) -> None:
        """Stop counting a call."""
        self.count -= 1
        if not self.count:
            self.idle.set()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()


class ServingCore:
    """Admits calls, and reports the backend's models, load and problems.

    The backend is ready while every loaded encoder runs and at least one model is served. If no
    model is assigned to the backend, it is ready without models. Broken models are reported as
    missing, and do not affect other models.

    `replace` changes the model set. Calls that name an old revision are still answered by that
    revision, until `forget` is called for that revision.
    """

    gpu: GpuState | None = None
    """The latest state of the GPU, if there is one."""

    def __init__(
        self,
        *,
        backend_id: str,
        region: str,
        model_set: ModelSet,
        clock: Callable[[], float],
        device: Device,
        mirror: Mirror,
        hosts: AlgorithmHosts,
        residency: Residency,
        expanded_bytes: int,
    ) -> None:
        self.memory = open_memory(expanded_bytes, clock)
        """The memory budget of large items in progress, shared fairly among scopes."""
        self._backend_id, self._region = backend_id, region
        self.model_set = model_set
        self._retired: dict[Variant, ModelSetEntry] = {}
        # Caches `_find` for the present model set.
        self._found: dict[Variant, tuple[ModelSetEntry, list[DeclaredEncoder]]] = {}
        self._items: Counter[tuple[str, str, str]] = Counter()
        self.calls = CallsInFlight()
        self.draining = False
        """The backend accepts no more calls."""
        self.leaving = False
        """The backend reports that it is not ready, but still answers calls."""
        self.plans = 0
        """The version of the operators' plans that are in effect."""
        self.assignment = Assignment()
        """The latest assignment by a gateway; its models may still be loading."""
        self.patterns: Collection[str] = ("*",)
        """The name patterns of the models that are served."""
        self.wanted: Collection[str] = ("*",)
        """The name patterns of the models that will be served once they are loaded."""
        self.revision_counts = RevisionCounts()
        # Upstream servers that are not ready at present.
        self.unready: frozenset[RemoteModelServer] = frozenset()
        self._clock = clock
        self._device = device
        self._mirror = mirror
        self._hosts = hosts
        self.residency = residency
        self._estimates = WorkEstimates()
        self._reported = -math.inf
        self._report_frame = b""

    def replace(self, model_set: ModelSet) -> Mapping[Variant, ModelSetEntry]:
        """Serve another model set, and return the models that it no longer contains.

        Calls that name these models are still answered, until `forget` is called for them.
        """
        before, self.model_set = self.model_set, model_set
        self._found.clear()
        kept = {_variant(info) for info in model_set.infos()}
        for variant in kept:
            self._retired.pop(variant, None)
        retired = {
            variant: source
            for source in before.sources().values()
            if (variant := _variant(source.served_model.info)) not in kept
        }
        self._retired |= retired
        return retired

    def forget(self, retired: Mapping[Variant, ModelSetEntry]) -> None:
        """Stop answering calls that name retired models.

        A retired model stays if it has been served again in the meantime.
        """
        self._found.clear()
        for variant, entry in retired.items():
            if self._retired.get(variant) is entry:
                del self._retired[variant]

    def revisions(self) -> set[tuple[str, str]]:
        """Return the name and revision of every model that calls may name."""
        served = {(info.name, info.revision) for info in self.model_set.infos()}
        return served | {(name, revision) for name, revision, _ in self._retired}

    def declared(self) -> list[DeclaredEncoder]:
        """Return every encoder that calls may need, including the encoders of retired models."""
        used = [self.model_set, *(retired.model_set for retired in self._retired.values())]
        return list(dict.fromkeys(e for model_set in used for e in model_set.declared()))

    def running(self) -> list[RunningEncoder]:
        """Return those encoders of `declared` that are loaded."""
        return [each.running for each in self.declared() if each.running is not None]

    def mirrored_encoders(self) -> set[str]:
        """Return the names of the encoders that mirrored items use at present."""
        needs = self.model_set.needs
        return {need for name in self._mirror.shadows() for need in needs.get(name, ())}

    def admit(self, call: Call, *, has_waited: bool = False) -> tuple[ModelSetEntry, CallWork]:
        """Return the model for a call, and a `CallWork` whose `admit` must be called next.

        A call that `has_waited` for its model is admitted even if the backend has begun to drain.

        Raises:
            NotLoaded: an encoder is not loaded.
            CallRefused: the model or task is not served here, or is not ready.
        """
        if self.draining and not has_waited:
            raise NotReady("the backend is stopping; try another one")
        variant = (call.model, call.revision, call.profile)
        found = self._found.get(variant)
        if found is None:
            found = self._found[variant] = self._find(variant)
        entry, encoders = found
        served_model = entry.served_model
        if served_model.find(call.task) is None:
            raise ModelNotFound(f"model `{call.model}` has no task `{call.task}`")
        self.residency.use(encoders)
        running = encoders[0].running
        if running is None:
            raise NotLoaded(encoders)
        if running.failure is not None:
            raise NotReady(f"the encoder of `{call.model}` has failed: {running.failure}")
        if running.upstream in self.unready:
            raise NotReady(f"the server that runs `{call.model}` is not ready")
        work = CallWork(
            call,
            served_model.info,
            estimates=self._estimates,
            batcher=running.batcher,
            portions=running.portions,
            encoders=encoders,
        )
        return entry, work

    def _find(self, variant: Variant) -> tuple[ModelSetEntry, list[DeclaredEncoder]]:
        name = variant[0]
        present = self.model_set.find(name)
        if present is not None and _variant(present.served_model.info) == variant:
            entry = present
        elif (retired := self._retired.get(variant)) is not None:
            entry = retired
        elif present is None:
            raise ModelNotFound(f"model `{name}` is not served here")
        else:
            info = present.served_model.info
            raise RevisionMismatch(
                f"`{name}` is served here as revision `{info.revision}` in `{info.profile}`"
            )
        return entry, entry.encoders()

    @property
    def calls_in_flight(self) -> int:
        """The number of calls in flight."""
        return self.calls.count

    async def idle(self) -> None:
        """Wait until no call is in flight."""
        while self.calls.count:  # a call that waited for its model may begin at once
            await self.calls.idle.wait()

    def count_item(self, call: Call, outcome: str) -> None:
        """Count an item that has ended; `outcome` is a label of the metric `items_total`."""
        self._items[call.model, call.task, outcome] += 1

    def failures(self) -> list[str]:
        """Return why the device or any loaded encoder has failed for good."""
        device = [] if self._device.failure is None else [self._device.failure]
        return device + [
            f"{encoder.name}: {encoder.failure}"
            for encoder in self.model_set.all_encoders()
            if encoder.failure is not None
        ]

    def state(self) -> ServingState:
        """Return the identity, readiness, models and load of the backend."""
        failures = self.failures()
        problems = [f"{name}: {reason}" for name, reason in self.model_set.problems.items()]
        away = [
            f"{encoder.name}: {encoder.upstream} is not ready"
            for encoder in self.model_set.all_encoders()
            if encoder.upstream in self.unready
        ]
        missing = [*failures, *problems, *away]
        is_leaving = self.draining or self.leaving
        if is_leaving:
            missing.append("draining: the backend is stopping")
        infos = self._infos()
        is_idle = not infos and {*self.patterns, *self.wanted} <= {NO_MODEL}
        if not infos and not is_idle:
            is_loading = set(self.wanted) != set(self.patterns)
            missing.append("models are loading" if is_loading else "no model is served")
        providers = {encoder.batcher.provider for encoder in self.model_set.all_encoders()}
        return ServingState(
            backend_id=self._backend_id,
            region=self._region,
            ready=not (failures or away or is_leaving) and (bool(infos) or is_idle),
            leaving=self.leaving and not self.draining,
            missing=missing,
            provider=", ".join(sorted(providers)) or "none",
            models=infos,
            problems=dict(self.model_set.problems),
            plans=self.plans,
            assignment=self.assignment,
            arms=self.revision_counts.statistics(self._mirror.statistics()),
            gpu=self.gpu,
            states=self._states(),
            report=self.report(),
        )

    def _states(self) -> dict[str, ModelState]:
        """Return the state of each model; empty if all models are always loaded."""
        if not self.residency.is_bounded:
            return {}
        sources = self.model_set.sources().items()
        return {name: self.residency.state(entry.encoders()) for name, entry in sources}

    def _infos(self) -> list[ModelInfo]:
        """Return the info of every model, with the variants that it replaced."""
        replaced: dict[str, list[ModelInfo]] = {}
        for entry in self._retired.values():
            old = entry.served_model.info
            replaced.setdefault(old.name, []).append(old)
        return [
            msgspec.structs.replace(
                info, replaced=tuple(old.variant for old in replaced[info.name])
            )
            if info.name in replaced
            else info
            for info in self.model_set.infos()
        ]

    def report_frame(self) -> bytes:
        """Return the encoded load report, which is at most 10 ms old."""
        now = self._clock()
        if now - self._reported >= _REPORT_AGE:
            self._reported, self._report_frame = now, encode_frame(self.report())
        return self._report_frame

    def report(self) -> Report:
        """Return the load of all encoders together."""
        statistics = [encoder.batcher.statistics() for encoder in self.model_set.all_encoders()]
        return Report(
            queued_rows=sum(s.queued_rows for s in statistics),
            queued_tokens=sum(s.queued_tokens for s in statistics),
            rows_per_second=max((s.rows_per_second for s in statistics), default=0.0),
            tokens_per_second=max((s.tokens_per_second for s in statistics), default=0.0),
            padding_waste_ratio=padding_waste_ratio(*statistics),
            queued_seconds=max((s.queued_seconds for s in statistics), default=0.0),
            device_busy_share=self._device.busy_share(),
            runs_in_flight=sum(s.runs_in_flight for s in statistics),
            releases=dict(sum((Counter(s.releases) for s in statistics), Counter())),
        )

    def snapshot(self) -> Snapshot:
        """Return the numbers for the metrics.

        If several encoders have the same name, only the newest one is included.
        """
        found = (encoder.statistics() for encoder in reversed(self.model_set.declared()))
        encoders = {each.name: each for each in found if each is not None}
        return Snapshot(
            ready=self.state().ready,
            calls_in_flight=self.calls.count,
            device_busy_share=self._device.busy_share(),
            items=dict(self._items),
            encoders=list(reversed(encoders.values())),
            shadows=(shadows := self._mirror.statistics()),
            revisions=self.revision_counts.statistics(shadows),
            lost_hosts=self._hosts.statistics(),
            models={info.name: info.revision for info in self.model_set.infos()},
            states=self._states(),
            residency=self.residency.statistics(),
        )


def _variant(info: ModelInfo) -> Variant:
    return info.name, info.revision, info.profile
