"""Holds a request with its plan: the model, cache keys, and the work for items that miss."""

from functools import partial
from typing import Literal

import msgspec

from gateway.cache.entry import CachedResult, Validity
from gateway.cache.key import CacheKey, Prefix
from gateway.config.document import ModelConfig
from gateway.dispatch.work import ItemOwner, Work
from gateway.inference.outcomes import hit_outcome, refused_as_truncated
from gateway.runtime.runtime import Runtime
from gateway.types import (
    CacheDirectives,
    Criticality,
    InferenceRequest,
    ItemOutcome,
    Principal,
    ServedModel,
)

_OK = 200
_PLAIN = CacheDirectives()


class RequestPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions about a model, a tenant and parameters, valid for one runtime."""

    runtime: Runtime
    model: ServedModel
    scope: str
    prefix: Prefix
    entry: ModelConfig
    unrevised: Prefix | None = None
    """Makes the keys of last answers of any revision. `None` means that none are kept."""
    owner: str = ""
    """The scope of the calling tenant, if the answers are kept for all tenants."""

    def is_valid(self, entry: CachedResult, now: float, max_age: float | None = None) -> bool:
        """Return whether a caller who accepts `max_age` seconds may get a stored answer.

        The configuration may have shortened lifetimes after the answer was stored. An operator may
        have purged the tenant whose request computed the answer.
        """
        if entry.status == _OK:
            lifetime = self.entry.cache_ttl
        else:
            lifetime = self.runtime.document.cache.refusal_ttl
        if max_age is not None and max_age < lifetime:
            lifetime = max_age
        if now - entry.stored_at > lifetime:
            return False
        return not entry.owner or self.is_kept(entry)

    def validity(self, directives: CacheDirectives) -> Validity:
        """Return `is_valid` for a caller with `directives`.

        If the function refuses an entry in memory, the look-up goes on to Redis.
        """
        if directives.max_age is None:
            return self.is_valid
        return partial(self.is_valid, max_age=directives.max_age)

    def is_kept(self, entry: CachedResult) -> bool:
        """Return whether no purge of the computing tenant has happened since."""
        owner = entry.owner
        return not owner or entry.owner_epoch == self.runtime.epochs.get(owner, 0)


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a request with its plan and cache keys, without caller and deadline."""

    request: InferenceRequest
    plan: RequestPlan
    keys: list[CacheKey]

    def may_read(self, directives: CacheDirectives) -> bool:
        """Return whether the caller may get stored answers."""
        return not directives.no_cache and self.plan.entry.cache_ttl > 0

    def is_shared(self, directives: CacheDirectives) -> bool:
        """Return whether other workers may learn of the computed answers."""
        return self.request.truncate and directives == _PLAIN and self.plan.entry.cache_ttl > 0

    def outcome(self, entry: CachedResult, tier: str, now: float) -> ItemOutcome:
        """Return a stored answer as an outcome: a refusal where the text must not be truncated."""
        outcome = hit_outcome(entry, tier, now)
        if self.request.truncate or not outcome.truncated_from:
            return outcome
        return refused_as_truncated(outcome, self.plan.model.info)

    def work(
        self,
        owner: ItemOwner,
        *,
        deadline: float,
        is_shared: bool,
        is_stored: bool = True,
        principal: Principal | None = None,
        criticality: Criticality = Criticality.DEFAULT,
        lane: Literal["interactive", "bulk"] = "interactive",
        atomic: bool = False,
        traceparent: str = "",
    ) -> "PlannedWork":
        """Return what open items of the request share.

        Other workers learn of the items if `is_shared`, and the answers are stored if `is_stored`.
        """
        plan, request = self.plan, self.request
        return PlannedWork(
            plan=plan,
            is_stored=is_stored,
            model=plan.model,
            task=request.task,
            parameters=request.parameters,
            owner=owner,
            deadline=deadline,
            scope=plan.scope,
            principal=principal,
            criticality=criticality,
            lane=lane,
            truncate=request.truncate,
            is_valid=plan.is_valid,
            is_shared=is_shared,
            atomic=atomic,
            traceparent=traceparent,
        )


class PlannedWork(Work, eq=False, kw_only=True):
    """What open items of a request share, with the request's plan."""

    plan: RequestPlan
    is_stored: bool = True
    """Whether the answers are stored."""
