"""Tests the faults of a simulated world as data: what a seed and what a plan make of them."""

import pytest

from testing.simulation.world.faults import KINDS, make_directed, make_faults

_SEEDS = range(40)


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_has_a_target(kind: str) -> None:
    faults = [fault for seed in _SEEDS for fault in make_faults(seed, (kind,))]

    assert {fault.kind for fault in faults} == {kind}
    assert all(fault.target for fault in faults)


@pytest.mark.parametrize("kind", ["kill-call", "kill-request"])
def test_faults_that_count_calls_have_a_whole_number(kind: str) -> None:
    amounts = {fault.amount for seed in _SEEDS for fault in make_faults(seed, (kind,))}

    assert min(amounts) >= 1.0
    assert len(amounts) > 1
    assert all(amount.is_integer() for amount in amounts)


def test_a_plan_is_carried_out_in_its_order_in_one_region() -> None:
    plan = ("limit 500", "slow gateway redis", "cut-one-way gateway callers", "crash backend")

    for seed in _SEEDS:
        limit, slow, cut, crash = make_directed(seed, plan)
        region = slow.target.split("-")[0]
        assert limit.at < slow.at < cut.at < crash.at
        assert limit.amount == 500.0
        assert (slow.target, slow.other) == (f"{region}-gateway", f"{region}-redis")
        assert (cut.target, cut.other) == (f"{region}-gateway", "callers")
        assert crash.target == f"{region}-backend"


def test_seeds_carry_a_plan_out_at_other_times_and_in_other_regions() -> None:
    steps = [make_directed(seed, ("kill gateway/worker-0",))[0] for seed in _SEEDS]

    assert {step.target for step in steps} == {"eu-gateway/worker-0", "us-gateway/worker-0"}
    assert len({step.at for step in steps}) == len(steps)
    assert len({step.lasts for step in steps}) > 1


def test_a_plan_may_fix_what_the_seed_would_choose() -> None:
    plan = ("swap", "slow eu-gateway us-redis for 6 by 0.8 after 1", "crash gateway after 4")

    for seed in _SEEDS:
        swap, slow, crash = make_directed(seed, plan)
        assert (slow.target, slow.other) == ("eu-gateway", "us-redis")
        assert (slow.lasts, slow.amount) == (6.0, 0.8)
        assert slow.at == swap.at + 1.0
        assert crash.at == slow.at + 4.0
