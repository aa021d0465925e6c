"""Work is reserved before it runs, and charged what it cost."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from typing_extensions import override

from sluicegate.gateway.config.document import Document, LimitsConfig, ModelConfig
from sluicegate.gateway.dispatch import failures
from sluicegate.gateway.dispatch.limited import LimitedRunner
from sluicegate.gateway.dispatch.work import OpenItem
from sluicegate.gateway.runtime.runtime import compile_runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import ItemOutcome, KeyId, Principal, Rule, TenantId
from tests.support.clock import Clock
from tests.support.inference_scene import GatedRunner, RecordedTasks, Scene
from tests.support.limits import LocalRateLimiter

pytestmark = pytest.mark.anyio
_ROW = Rule(name="rows", unit="rows", capacity=1, window=3600.0)
_NOBODY = Principal(tenant=TenantId("acme"), key=KeyId("key_1"))


class Knowing(GatedRunner):
    """Computes nothing, as a backend that has every row in its row cache."""

    @override
    def _outcome(self, body: bytes) -> ItemOutcome:
        return msgspec.structs.replace(super()._outcome(body), rows=0, tokens=0, known_rows=1)


class Ended:
    """An owner of one item that hears of its end."""

    def __init__(self, ended: asyncio.Future[ItemOutcome]) -> None:
        self._ended = ended

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """See `ItemOwner`."""
        (item,) = items
        assert item.outcome is not None
        self._ended.set_result(item.outcome)


class Limited:
    """Runs works of one row under limits."""

    def __init__(
        self, principal: Principal, document: Document, *, runner: GatedRunner | None = None
    ) -> None:
        self._scene = Scene(runner=runner)
        self._principal = principal
        self.tasks = RecordedTasks()
        self.runner = LimitedRunner(
            runner=self._scene.runner,
            limiter=LocalRateLimiter(monotonic=Clock()),
            runtimes=RuntimeStore(compile_runtime(document, 1)),
            tasks=self.tasks,
            tracer=Tracer(),
        )

    def start(self) -> tuple[OpenItem, asyncio.Future[ItemOutcome]]:
        """Start an item; the future gets its outcome."""
        prepared, caller = self._scene.prepared("a")
        ended: asyncio.Future[ItemOutcome] = asyncio.get_running_loop().create_future()
        work = prepared.work(
            Ended(ended), deadline=caller.deadline, is_shared=False, principal=self._principal
        )
        item = OpenItem(work, 0, b"a", prepared.keys[0])
        self.runner.start([item])
        return item, ended

    async def codes(self, works: int) -> list[str]:
        """Run works one after the other; return each failure's code, empty if none."""
        found: list[str] = []
        for _ in range(works):
            _, ended = self.start()
            failure = (await ended).failure
            found.append("" if failure is None else failure.code)
        return found


@pytest.mark.parametrize(
    ("principal", "document"),
    [
        (msgspec.structs.replace(_NOBODY, tenant_rules=(_ROW,)), Document()),
        (msgspec.structs.replace(_NOBODY, key_rules=(_ROW,)), Document()),
        (_NOBODY, Document(limits=LimitsConfig(tenant=(_ROW,)))),
        (_NOBODY, Document(limits=LimitsConfig(key=(_ROW,)))),
        (_NOBODY, Document(models={"sentiment": ModelConfig(limits=(_ROW,))})),
    ],
    ids=["tenant", "key", "every tenant", "every key", "model"],
)
async def test_whoever_has_the_limit_is_refused_beyond_it(
    principal: Principal, document: Document
) -> None:
    assert await Limited(principal, document).codes(2) == ["", "rate_limited"]


@pytest.mark.parametrize(
    "limit", [_ROW, Rule(name="tokens", unit="tokens", capacity=5, window=3600.0)]
)
@pytest.mark.parametrize(("runner", "code"), [(GatedRunner, "rate_limited"), (Knowing, "")])
async def test_only_computed_rows_and_tokens_are_charged(
    limit: Rule, runner: type[GatedRunner], code: str
) -> None:
    principal = msgspec.structs.replace(_NOBODY, tenant_rules=(limit,))

    codes = await Limited(principal, Document(), runner=runner()).codes(2)

    assert codes == ["", code]


async def test_what_is_cancelled_before_it_starts_costs_nothing() -> None:
    limited = Limited(msgspec.structs.replace(_NOBODY, tenant_rules=(_ROW,)), Document())

    item, ended = limited.start()
    limited.runner.cancel([item])
    await asyncio.wait(limited.tasks.tasks)

    assert (await ended).failure == failures.CANCELLED
    assert await limited.codes(2) == ["", "rate_limited"]
