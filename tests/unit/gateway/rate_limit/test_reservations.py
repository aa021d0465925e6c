"""Reserved units are returned if the limiter gives no decision about a call, or refuses it."""

import asyncio
from collections.abc import Sequence

import pytest
from typing_extensions import override

from sluicegate.gateway.errors import MAX_RETRY_AFTER
from sluicegate.gateway.rate_limit.base import Charge, Decision
from sluicegate.gateway.rate_limit.charges import Estimate, WorkLimits
from sluicegate.gateway.rate_limit.reservations import reserve
from sluicegate.gateway.types import KeyId, Principal, Rule, TenantId
from tests.support.clock import Clock
from tests.support.limits import LocalRateLimiter

pytestmark = pytest.mark.anyio
_MODEL = Rule(name="shared", unit="rows", capacity=10, window=3600.0)
_TENANT = Rule(name="own", unit="rows", capacity=10, window=3600.0)


class _FailingForTenants(LocalRateLimiter):
    """Decides for models, and fails with `failure` for tenants."""

    failure: type[BaseException]

    @override
    async def admit(self, charges: Sequence[Charge]) -> Decision:
        if any(charge.rule.name == _TENANT.name for charge in charges):
            raise self.failure
        return await super().admit(charges)


@pytest.mark.parametrize("failure", [TimeoutError, asyncio.CancelledError])
async def test_a_model_s_units_go_back_if_the_tenant_s_limit_is_silent(
    failure: type[BaseException],
) -> None:
    limiter = _FailingForTenants(monotonic=Clock())
    limiter.failure = failure
    principal = Principal(tenant=TenantId("a"), key=KeyId("k"))
    most = Estimate(items=1, rows=10, tokens=10)
    both = WorkLimits(tenant=(_TENANT,), model=(_MODEL,))

    with pytest.raises(failure):
        await reserve(limiter, both, principal, model="m", most=most)

    again = await reserve(limiter, WorkLimits(model=(_MODEL,)), principal, model="m", most=most)
    assert again.refusal is None


async def test_what_a_model_s_limit_gave_goes_back_when_the_tenant_is_refused() -> None:
    limiter = LocalRateLimiter(monotonic=Clock())
    principal = Principal(tenant=TenantId("a"), key=KeyId("k"))
    most = Estimate(items=1, rows=10, tokens=10)
    small = Rule(name="small", unit="rows", capacity=5, window=3600.0)
    both = WorkLimits(tenant=(small,), model=(_MODEL,))

    refused = await reserve(limiter, both, principal, model="m", most=most)

    assert refused.refusal is not None
    again = await reserve(limiter, WorkLimits(model=(_MODEL,)), principal, model="m", most=most)
    assert again.refusal is None


async def test_a_refused_call_is_retried_within_two_minutes() -> None:
    limiter = LocalRateLimiter(monotonic=Clock())
    principal = Principal(tenant=TenantId("a"), key=KeyId("k"))
    limits = WorkLimits(tenant=(_TENANT,))
    most = Estimate(items=1, rows=10, tokens=10)
    await reserve(limiter, limits, principal, model="m", most=most)

    refused = await reserve(limiter, limits, principal, model="m", most=most)

    assert refused.refusal is not None
    assert refused.refusal.retry_after == MAX_RETRY_AFTER
