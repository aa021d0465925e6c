"""Work is reserved before it runs, and charged what it cost."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from typing_extensions import override

from gateway.config.document import Document, LimitsConfig, ModelConfig
from gateway.dispatch.limited import LimitedRunner
from gateway.dispatch.work import OpenItem
from gateway.runtime.runtime import compile_runtime
from gateway.runtime.store import RuntimeStore
from gateway.telemetry.tracing import Tracer
from gateway.types import ItemOutcome, KeyId, Principal, Rule, TenantId
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


async def codes_of(
    principal: Principal, document: Document, *, works: int, runner: GatedRunner | None = None
) -> list[str]:
    """Run works of one row one after the other; return each failure's code, empty if none."""
    scene = Scene(runner=runner)
    limited = LimitedRunner(
        runner=scene.runner,
        limiter=LocalRateLimiter(monotonic=Clock()),
        runtimes=RuntimeStore(compile_runtime(document, 1)),
        tasks=RecordedTasks(),
        tracer=Tracer(),
    )
    prepared, caller = scene.prepared("a")
    found: list[str] = []
    for _ in range(works):
        ended: asyncio.Future[ItemOutcome] = asyncio.get_running_loop().create_future()
        work = prepared.work(
            Ended(ended), deadline=caller.deadline, is_shared=False, principal=principal
        )
        limited.start([OpenItem(work, 0, b"a", prepared.keys[0])])
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
    assert await codes_of(principal, document, works=2) == ["", "rate_limited"]


@pytest.mark.parametrize(
    "limit", [_ROW, Rule(name="tokens", unit="tokens", capacity=5, window=3600.0)]
)
@pytest.mark.parametrize(("runner", "code"), [(GatedRunner, "rate_limited"), (Knowing, "")])
async def test_only_computed_rows_and_tokens_are_charged(
    limit: Rule, runner: type[GatedRunner], code: str
) -> None:
    principal = msgspec.structs.replace(_NOBODY, tenant_rules=(limit,))

    codes = await codes_of(principal, Document(), works=2, runner=runner())

    assert codes == ["", code]
