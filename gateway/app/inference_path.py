"""Builds the objects that process an item: result cache, coalescing, limits and dispatch."""

import random
import time
from collections.abc import Callable

from sluicegate.gateway.app.backends import BACKGROUND_DRAIN
from sluicegate.gateway.app.secret import secret_of
from sluicegate.gateway.cache.build import build_cache
from sluicegate.gateway.cache.key import KeyMaker
from sluicegate.gateway.dispatch.dispatcher import Dispatcher
from sluicegate.gateway.dispatch.limited import LimitedRunner
from sluicegate.gateway.inference.claiming import ClaimingRunner
from sluicegate.gateway.inference.coalescing import Flights
from sluicegate.gateway.inference.inference import Inference
from sluicegate.gateway.inference.last_answers import LastAnswers, Refresher
from sluicegate.gateway.inference.storing import AnswerStore
from sluicegate.gateway.rate_limit.redis_limiter import RedisRateLimiter
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.tasks import TaskScope
from sluicegate.gateway.telemetry.tracing import Tracer


class InferencePath:
    """Owns the objects that process an item before the dispatcher sends it to a backend.

    The caller must enter the contexts of `cache` and `tasks`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        runtimes: RuntimeStore,
        limiter: RedisRateLimiter,
        fleet: Fleet,
        dispatcher: Dispatcher,
        clock: Callable[[], float],
        tracer: Tracer,
        is_bulk: bool = False,
    ) -> None:
        self.cache = build_cache(
            runtimes.current.document.cache,
            url=settings.cache_url,
            clock=time.time,  # noqa: TID251 - entries travel between machines
            monotonic=clock,
            random=random.random,
            keepalive=settings.tcp_keepalive,
        )
        self.tasks = TaskScope(drain=BACKGROUND_DRAIN)
        self.flights = Flights()
        self._runner = ClaimingRunner(
            LimitedRunner(
                runner=dispatcher,
                limiter=limiter,
                runtimes=runtimes,
                tasks=self.tasks,
                tracer=tracer,
            ),
            cache=self.cache,
            tasks=self.tasks,
            lease=runtimes.current.document.cache.lease,
            tracer=tracer,
        )
        store = AnswerStore(cache=self.cache, claims=self._runner, flights=self.flights)
        refresher = Refresher(
            runner=self._runner, owner=store, is_computed=self.flights.__contains__
        )
        self.last_answers = LastAnswers(cache=self.cache, refresher=refresher)
        self.inference = Inference(
            models=fleet,
            keys=KeyMaker(secret=secret_of(settings)),
            cache=self.cache,
            last_answers=self.last_answers,
            flights=self.flights,
            owner=store,
            runner=self._runner,
            tracer=tracer,
            lane="bulk" if is_bulk else "interactive",
        )
        runtimes.on_swap(self._apply)

    def _apply(self, runtime: Runtime) -> None:
        self.cache.configure(runtime.document.cache)
        self._runner.lease = runtime.document.cache.lease
