"""Serves the models of a repository, and reloads changed models without an interruption."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Self

from sluicegate.backends.open_inference.address import RemoteModelServer, servers
from sluicegate.backends.open_inference.client import fingerprint
from sluicegate.backends.repository.catalogue import Catalogue
from sluicegate.backends.repository.staging import remove_abandoned
from sluicegate.backends.repository.sync_record import SyncWatch
from sluicegate.backends.serving.core import (
    ModelSet,
    ModelSetEntry,
    ServingCore,
    Variant,
)
from sluicegate.backends.serving.loading import LoadingTools, make_shared
from sluicegate.backends.serving.recovery import RecoveredModels, load_repository, try_plan
from sluicegate.backends.serving.residency import DeclaredEncoder, Residency
from sluicegate.wire.plans import Assignment, PlanTrial, ServingPlans
from sluicegate.wire.protocol import PlanVerdict

_log = logging.getLogger(__name__)
# Seconds between two checks of the repository and of upstream servers.
_WATCH = 0.5
_RETRY_INTERVAL = 30.0


class Repository:
    """Serves the models of a repository; starts and stops their threads as a context manager.

    A reload first loads all new revisions, and then lets calls use them. For `retire_after`
    seconds, an old revision still answers calls that name it. If a new revision is broken, the old
    revision stays in service.

    At first, the settings say which models are served. Later, a gateway may assign other models.
    Each `models sync` causes a reload. Operators' plans override `serving.yaml` files. The plans
    are in memory only, because gateways send them to each backend that starts.
    """

    def __init__(self, tools: LoadingTools) -> None:
        """Read the repository and load its models.

        Raises:
            StartProblem: the repository's folder is missing.
        """
        self._tools = tools
        self._settings = settings = tools.settings
        remove_abandoned(settings.models)
        self._shared = make_shared(tools)
        self._servers = servers(settings)
        self._plans = ServingPlans()
        self._assignment = self._followed = Assignment()
        folders = (settings.models, settings.more_models)
        self._syncs = [SyncWatch(folder) for folder in folders if folder is not None]
        loaded = self._load(None, ())
        self._upstreams = loaded.catalogue.upstreams
        self._tried = tools.clock()
        # Whether a sync still needs a reload; the assignment and the time of the last failed
        # attempt.
        self._is_behind = False
        self._failed: tuple[Assignment, float] | None = None
        # Seconds before the backend tries a failed change again. After the same time, it also tries
        # again to load a model whose upstream server is ready.
        self.retry_interval = _RETRY_INTERVAL
        self._residency = Residency(
            max_bytes=settings.model_memory_bytes,
            retry=self._requalify,
            has_threads=settings.provider != "cpu",
        )
        self.core = ServingCore(
            backend_id=settings.backend_id,
            region=settings.region,
            model_set=loaded.model_set,
            clock=tools.clock,
            device=self._shared.device,
            mirror=self._shared.mirror,
            hosts=self._shared.hosts,
            residency=self._residency,
            expanded_bytes=settings.expanded_bytes,
        )
        self._residency.in_background = self.core.mirrored_encoders
        self.core.patterns = self.core.wanted = self._patterns(self._followed)
        # The next reload, which has not begun. Until it begins, all requests for a reload share it.
        self._next: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._woken = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._residency.start(self.core.model_set.encoders)
        await self._residency.serve(self.core.model_set.encoders)
        self._own(asyncio.create_task(self._watch()))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._shared.mirror.close()
        self._shared.hosts.close()
        await self._residency.close()

    async def reload(self, plans: ServingPlans | None = None) -> None:
        """Load the repository's present files, and return once calls use them.

        If several calls of this method arrive during a reload, one further reload answers all of
        them. `plans` take effect if no newer plans have arrived before.

        Raises:
            StartProblem: the repository's folder is missing. The old models stay in service.
        """
        if plans is not None and plans.version > self._plans.version:
            self._plans = plans
        if self._next is None:
            self._next = asyncio.create_task(self._reload_next())
            self._own(self._next)
        await asyncio.shield(self._next)

    def assign(self, assignment: Assignment) -> None:
        """Change which models are served, if no newer assignment has arrived before.

        The new models are loaded first. Removed models still answer calls for `retire_after`
        seconds.
        """
        if assignment.replaces(self._assignment):
            self._assignment = self.core.assignment = assignment
            self.core.wanted = self._patterns(assignment)
            self._woken.set()

    def _patterns(self, assignment: Assignment) -> tuple[str, ...]:
        return (*(assignment.models or self._settings.own_assignment), *assignment.until)

    async def check(self, trial: PlanTrial) -> PlanVerdict:
        """Load the models of a trial plan and return the result, without serving the models.

        Raises:
            StartProblem: the repository's folder is missing.
        """
        async with self._lock:
            verdict = await asyncio.to_thread(
                try_plan,
                self._tools,
                self._shared,
                self._servers,
                trial=trial,
                plans=self._plans.plans,
                assigned=self._patterns(self._assignment),
                running=self.core.declared(),
            )
            # Close the algorithm hosts that were started only for this trial.
            self._shared.hosts.keep(self.core.revisions())
            return verdict

    async def _reload_next(self) -> None:
        async with self._lock:
            self._next = None
            await self._reload()

    def _own(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self) -> None:
        self._tried = self._tools.clock()
        plans, assignment = self._plans, self._assignment
        loaded = await asyncio.to_thread(self._load, self.core.model_set, self.core.declared())
        model_set = loaded.model_set
        await self._residency.start(model_set.encoders)
        self._upstreams = loaded.catalogue.upstreams
        retired = self.core.replace(model_set)
        self.core.plans = plans.version
        await self._residency.serve(model_set.encoders, self.core.declared())
        self._followed, self.core.patterns = assignment, self._patterns(assignment)
        for name, reason in model_set.problems.items():
            _log.error("cannot load a model", extra={"model": name, "reason": reason})
        _log.info("models reloaded", extra={"replaced": len(retired)})
        self._own(asyncio.create_task(self._retire(retired)))

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self.take_up_changes()
                await self.check_upstreams()
            except Exception:  # noqa: BLE001 - a failed check must not end the watch
                _log.exception("a check of the repository or of the upstream servers failed")

    async def take_up_changes(self) -> None:
        """Reload after a sync or a new assignment.

        Raises:
            StartProblem: the repository's folder is missing. Later calls try again.
        """
        synchronised = await asyncio.to_thread(lambda: [s.has_changed() for s in self._syncs])
        self._is_behind |= (is_new := any(synchronised))
        assignment = self._assignment
        if not self._is_behind and self._patterns(assignment) == self._patterns(self._followed):
            return
        now = self._tools.clock()
        if self._failed is not None and not is_new:
            failed, tried = self._failed
            if failed == assignment and now - tried < self.retry_interval:
                return
        self._failed = (assignment, now)
        await self.reload()
        self._failed, self._is_behind = None, False

    async def check_upstreams(self) -> None:
        """Check the upstream servers, and reload if one has changed.

        Raises:
            StartProblem: a server has changed, and the repository's folder is missing.
        """
        async with self._lock:
            known = list(self._upstreams)
            asked = (asyncio.to_thread(self._fingerprint, upstream) for upstream in known)
            found = dict(zip(known, await asyncio.gather(*asked), strict=True))
            ill = await self._unresponsive({each for each in known if found[each]})
            self.core.unready = frozenset(ill.union(e for e in known if not found[e]))
            used = {encoder.upstream for encoder in self.core.model_set.all_encoders()}
            # If the model of a ready server could not be loaded, try again from time to time.
            late = self._tools.clock() - self._tried >= self.retry_interval
            broken = any(found[each] and each not in used for each in known) and late
            if self._changed(found) or broken:
                await self._reload()

    async def _unresponsive(self, ready: set[RemoteModelServer]) -> set[RemoteModelServer]:
        """Return the servers that report that they are ready, but do not answer calls."""
        asked = [
            encoder for encoder in self.core.model_set.all_encoders() if encoder.upstream in ready
        ]
        well = await asyncio.gather(*(asyncio.to_thread(each.is_well) for each in asked))
        pairs = zip(asked, well, strict=True)
        return {each.upstream for each, is_well in pairs if each.upstream and not is_well}

    def _fingerprint(self, upstream: RemoteModelServer) -> str:
        return fingerprint(upstream, self._servers.token_for(upstream))

    def _changed(self, found: Mapping[RemoteModelServer, str]) -> set[RemoteModelServer]:
        """Return the ready servers whose fingerprint has changed."""
        known = self._upstreams
        return {each for each in found if found[each] and found[each] != known.get(each)}

    def _requalify(self) -> None:
        self._is_behind = True
        self._woken.set()

    def _load(self, before: ModelSet | None, known: Sequence[DeclaredEncoder]) -> RecoveredModels:
        def usable(catalogue: Catalogue) -> Sequence[DeclaredEncoder]:
            # Reopen the encoders of a changed upstream server, even if its model seems equal.
            changed = self._changed(catalogue.upstreams) if known else set()
            return [
                each
                for each in known
                if each.running is None or each.running.upstream not in changed
            ]

        return load_repository(
            self._tools,
            self._shared,
            self._servers,
            before=before,
            usable=usable,
            plans=self._plans.plans,
            assigned=self._patterns(self._assignment),
        )

    async def _retire(self, retired: Mapping[Variant, ModelSetEntry]) -> None:
        """Wait until gateways know about the change, then stop encoders that no call needs."""
        await asyncio.sleep(self._settings.retire_after)
        self.core.forget(retired)
        self._shared.hosts.keep(self.core.revisions())
        await self._residency.keep(self.core.declared())
