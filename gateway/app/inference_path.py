"""Builds the objects that process an item: result cache, coalescing, limits and dispatch."""

import random
import time
from collections.abc import Callable

from gateway.app.backends import BACKGROUND_DRAIN
from gateway.app.secret import secret_of
from gateway.cache.build import build_cache
from gateway.cache.key import KeyMaker
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.limited import LimitedRunner
from gateway.inference.claiming import ClaimingRunner
from gateway.inference.coalescing import Flights
from gateway.inference.inference import Inference
from gateway.inference.last_answers import LastAnswers, Refresher
from gateway.inference.storing import AnswerStore
from gateway.rate_limit.redis_limiter import RedisRateLimiter
from gateway.routing.fleet import Fleet
from gateway.runtime.runtime import Runtime
from gateway.runtime.store import RuntimeStore
from gateway.settings import Settings
from gateway.tasks import TaskScope
from gateway.telemetry.tracing import Tracer


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
