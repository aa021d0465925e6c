"""Builds the API over small fakes and calls it in this process, without a socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import cached_property, partial

import httpx
import msgspec
from litestar import Litestar
from litestar.types import Receive, Scope, Send
from prometheus_client import CollectorRegistry

from sluicegate.gateway.api.admission import AdmissionMiddleware
from sluicegate.gateway.api.core import Core
from sluicegate.gateway.api.cross_origin import CrossOrigin
from sluicegate.gateway.api.customer_application import CustomerApplication
from sluicegate.gateway.api.dialect import Dialect, error_format
from sluicegate.gateway.api.fast_path.front import FastPath
from sluicegate.gateway.api.fast_path.head_cache import RequestHeadCache
from sluicegate.gateway.api.health import Readiness
from sluicegate.gateway.api.idempotent_requests import IdempotentRequests
from sluicegate.gateway.api.incoming_request import IncomingBodies
from sluicegate.gateway.api.key_rotation import RotatedKey
from sluicegate.gateway.api.load_shedding import LoadShedder, LoopIterations
from sluicegate.gateway.api.metadata import UsageLine
from sluicegate.gateway.api.request_events import RequestEvents, RequestLines
from sluicegate.gateway.api.request_processor import RequestProcessor
from sluicegate.gateway.api.request_state import RequestIds
from sluicegate.gateway.api.request_steps import RequestSteps
from sluicegate.gateway.api.routes import build_api, inference_routes
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.batches.batch_access import open_batch_parts
from sluicegate.gateway.config.document import Document, IdempotencyConfig, LimitsConfig
from sluicegate.gateway.dialects.registry import DIALECTS
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.http.unsent_answers import UnsentAnswers
from sluicegate.gateway.idempotency.store import IdempotencyStore
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import BudgetReport, PastRequest
from sluicegate.gateway.redis.scripts import Script
from sluicegate.gateway.runtime.runtime import compile_runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import KeyId, Principal, RegionName, Rule, ServedModel, TenantId
from sluicegate.wire.protocol import ModelInfo
from tests.support.clock import Clock
from tests.support.events import RecordedEvents
from tests.support.inference_scene import INFO, Scene
from tests.support.limits import LocalRateLimiter

KEY = "sk-the-key-of-a-caller"
NARROW_KEY = "sk-a-key-for-one-model-only"
AUTHORIZATION = {"authorization": f"Bearer {KEY}"}


class Catalog:
    """The models that are served."""

    def __init__(self, *infos: ModelInfo) -> None:
        self._models = [ServedModel(info=info, regions=(RegionName("eu"),)) for info in infos]

    def model(self, name: str) -> ServedModel | None:
        """Return the model of that name."""
        return next((model for model in self._models if model.info.name == name), None)

    def models(self) -> Sequence[ServedModel]:
        """Return all."""
        return self._models


class FakeUsage:
    """Answers usage queries with `lines`, or `trouble`; records the queries."""

    def __init__(self) -> None:
        self.asked: list[tuple[Principal, datetime, datetime, Sequence[str]]] = []
        self.lines: list[UsageLine] = []
        self.trouble: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def report(
        self, caller: Principal, since: datetime, until: datetime, group_by: Sequence[str]
    ) -> list[UsageLine]:
        """Return the lines, once `answers` is set."""
        await self.answers.wait()
        if self.trouble is not None:
            raise self.trouble
        self.asked.append((caller, since, until, group_by))
        return self.lines

    async def budget(self, caller: Principal) -> BudgetReport | None:
        """Know no budget."""
        return None

    async def find(self, caller: Principal, request_id: str) -> PastRequest | None:
        """Know no request."""
        return None

    async def find_all(self, caller: Principal, client_id: str) -> list[PastRequest]:
        """Know no requests."""
        return []

    async def rotate(self, caller: Principal, *, former: bytes, keep: float) -> RotatedKey:
        """Refuse to."""
        raise DependencyUnavailable("There is no ledger.")


class NoScripts:
    """Stands for a Redis that nobody asks."""

    def register_script(self, script: str) -> Script:
        """Return what must not be called."""

        async def run(keys: object = None, args: object = None) -> list[object]:
            raise ConnectionError("there is no Redis")

        return run

    async def aclose(self) -> None:
        """Do nothing."""


class Api:
    """Holds the application and its fakes, to be inspected and changed."""

    dialects: Sequence[Dialect] = DIALECTS

    def __init__(self, tracer: Tracer | None = None) -> None:
        self.tracer = tracer or Tracer()
        self.scene = Scene(tracer=self.tracer)
        self.events = RecordedEvents()
        self.registry = CollectorRegistry()
        self.metrics = GatewayMetrics(self.registry)
        self.request_lines = RequestLines(share=1.0, per_second=1000)
        self.usage = FakeUsage()
        self.ready = Readiness(ready=True, missing=[])
        self.runtimes = RuntimeStore(compile_runtime(Document(), 1))
        self.clock = Clock()
        self.keys = KeyRing(
            {
                hash_key(KEY): Principal(tenant=TenantId("acme"), key=KeyId("key_1")),
                hash_key(NARROW_KEY): Principal(
                    tenant=TenantId("acme"), key=KeyId("key_2"), models=frozenset({"other"})
                ),
            }
        )
        self._connect()

    def _connect(self) -> None:
        self.ids = ids = RequestIds()
        self.unsent = UnsentAnswers()
        self.limiter = limiter = LocalRateLimiter(monotonic=self.clock)
        self.processor = processor = RequestProcessor(
            runtimes=self.runtimes,
            keys=self.keys,
            limiter=limiter,
            inference=self.scene.inference,
            models=self.scene.models,
            unsent=self.unsent,
            events=RequestEvents(
                ids=ids,
                events=self.events,
                metrics=self.metrics,
                loop_time=self.scene.loop_time,
                wall=lambda: 7,
                lines=self.request_lines,
            ),
            metrics=self.metrics,
            tracer=self.tracer,
        )
        rules = CrossOrigin(runtimes=self.runtimes, keys=self.keys)
        self.routes = inference_routes(self.dialects)
        heads = RequestHeadCache(
            processor=processor,
            keys=self.keys,
            runtimes=self.runtimes,
            routes=self.routes,
            cross_origin=rules,
        )
        shedder = self.shedder(LoopIterations(most=0.0))
        self.core = Core(processor)
        self.fast_path = FastPath(self.core, heads=heads, shedder=shedder)
        self.steps = self.steps_with(shedder)
        self.bodies = IncomingBodies()

    def steps_with(self, shedder: LoadShedder) -> RequestSteps:
        """Return the steps with what refuses requests."""
        return RequestSteps(
            self.core,
            cross_origin=CrossOrigin(runtimes=self.runtimes, keys=self.keys),
            shedder=shedder,
            idempotency=self.idempotency(),
            runtimes=self.runtimes,
            errors_of=partial(error_format, self.routes, self.dialects),
            new_id=self.ids.new,
        )

    def shedder(self, iterations: LoopIterations) -> LoadShedder:
        """Return what refuses requests by the iterations of the event loop."""
        return LoadShedder(
            iterations=iterations,
            metrics=self.metrics,
            runtimes=self.runtimes,
            new_id=self.ids.new,
        )

    def idempotency(self) -> IdempotentRequests:
        """Return the step for idempotency keys. Without a Redis, no route has it."""
        return IdempotentRequests(
            store=IdempotencyStore(
                redis=NoScripts(), config=IdempotencyConfig, monotonic=self.clock
            ),
            limiter=self.limiter,
            has_route=lambda *_: False,
        )

    async def application(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by the application, which is built for the first request that it gets."""
        await self._litestar(scope, receive, send)

    def routed(self) -> CustomerApplication:
        """Return the application as a worker serves it."""
        return CustomerApplication(
            self.steps, self.application, routes=self.routes, keys=self.keys, bodies=self.bodies
        )

    @cached_property
    def _litestar(self) -> Litestar:
        return build_api(
            version="1.2.3",
            admission=AdmissionMiddleware(
                limiter=self.limiter,
                runtimes=self.runtimes,
                new_id=self.ids.new,
            ),
            new_id=self.ids.new,
            models=Catalog(
                INFO,
                msgspec.structs.replace(INFO, name="other", labels=["a"]),
                msgspec.structs.replace(INFO, name="helper", labels=None, tasks=[]),
            ),
            runtimes=self.runtimes,
            usage=self.usage,
            requests=self.usage,
            rotation=self.usage,
            health=self,
            request_lines=self.request_lines,
            routes=self.routes,
            batches=open_batch_parts(Settings(), Ledger("sqlite:////dev/null/ledger.db")),
            dialects=self.dialects,
        )

    def document(self) -> Document:
        """Return the current document."""
        return self.runtimes.current.document

    def readiness(self) -> Readiness:
        """Return `ready`."""
        return self.ready

    def limit(self, *rules: Rule) -> None:
        """Give tenants these limits."""
        self.configure(limits=LimitsConfig(tenant=rules))

    def configure(self, **sections: object) -> None:
        """Replace sections of the document."""
        document = msgspec.structs.replace(self.document(), **sections)
        self.runtimes.current = compile_runtime(document, 2)

    def count(self, status: int, route: str = "/v1/classify") -> float | None:
        """Return how many requests to a route were counted with this status."""
        self.metrics.flush()
        labels = {"route": route, "model": INFO.name, "status": str(status)}
        return self.registry.get_sample_value("sluicegate_requests_total", labels)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Return a client with a key that may use everything."""
        transport = httpx.ASGITransport(app=self.routed())  # type: ignore[arg-type]  # as a server's
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            client.headers.update(AUTHORIZATION)
            yield client


def problem(response: httpx.Response, status: int, code: str) -> str:
    """Return the detail of the problem that the response must be."""
    found = response.json()
    assert (response.status_code, found["code"]) == (status, code), found
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"] == found["request_id"]
    return str(found["detail"])
