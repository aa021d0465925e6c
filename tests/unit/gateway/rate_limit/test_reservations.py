"""Reserved units are returned if the limiter fails while it decides on a call."""

from collections.abc import Sequence

import pytest
from typing_extensions import override

from gateway.rate_limit.base import Charge, Decision
from gateway.rate_limit.charges import Estimate, WorkLimits
from gateway.rate_limit.reservations import reserve
from gateway.types import KeyId, Principal, Rule, TenantId
from tests.support.clock import Clock
from tests.support.limits import LocalRateLimiter

pytestmark = pytest.mark.anyio
_MODEL = Rule(name="shared", unit="rows", capacity=10, window=3600.0)
_TENANT = Rule(name="own", unit="rows", capacity=10, window=3600.0)


class _SilentForTenants(LocalRateLimiter):
    """Decides for models, and times out for tenants."""

    @override
    async def admit(self, charges: Sequence[Charge]) -> Decision:
        if any(charge.rule.name == _TENANT.name for charge in charges):
            raise TimeoutError
        return await super().admit(charges)


async def test_a_model_s_units_are_returned_if_the_tenant_s_limit_times_out() -> None:
    limiter = _SilentForTenants(monotonic=Clock())
    principal = Principal(tenant=TenantId("a"), key=KeyId("k"))
    most = Estimate(items=1, rows=10, tokens=10)
    both = WorkLimits(tenant=(_TENANT,), model=(_MODEL,))

    with pytest.raises(TimeoutError):
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
