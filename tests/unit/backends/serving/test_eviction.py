"""Which models leave the memory: those that are little used, large, and quick to load."""

from sluicegate.backends.serving.eviction import EvictionPolicy


def used(policy: EvictionPolicy, name: str, times: int = 1, *, load_time: float = 1.0) -> None:
    for _ in range(times):
        policy.use(name, load_time=load_time, size_bytes=10)


def test_the_least_used_model_leaves_first() -> None:
    policy = EvictionPolicy()
    used(policy, "busy", 3)
    used(policy, "idle", 1)

    assert policy.victims({"busy": 10, "idle": 10}, excess_bytes=5) == ["idle"]


def test_a_model_that_loads_slowly_stays_longer() -> None:
    policy = EvictionPolicy()
    used(policy, "slow", load_time=9.0)
    used(policy, "quick", 2, load_time=1.0)

    assert policy.victims({"slow": 10, "quick": 10}, excess_bytes=1) == ["quick"]


def test_a_large_model_leaves_before_a_small_one() -> None:
    policy = EvictionPolicy()
    policy.use("large", load_time=1.0, size_bytes=100)
    policy.use("small", load_time=1.0, size_bytes=10)

    assert policy.victims({"large": 100, "small": 10}, excess_bytes=1) == ["large"]


def test_a_model_that_was_popular_once_loses_its_lead() -> None:
    policy = EvictionPolicy()
    used(policy, "once", 5)

    for number in range(10):
        used(policy, f"new-{number}", 2)
        policy.evict(f"new-{number}")
    used(policy, "now")

    assert policy.victims({"once": 10, "now": 10}, excess_bytes=1) == ["once"]


def test_as_many_models_leave_as_the_bytes_need() -> None:
    policy = EvictionPolicy()
    used(policy, "third", 3)
    used(policy, "second", 2)
    used(policy, "first", 1)
    sizes = {"first": 10, "second": 10, "third": 10}

    assert policy.victims(sizes, excess_bytes=11) == ["first", "second"]


def test_nothing_leaves_if_that_would_not_suffice() -> None:
    assert EvictionPolicy().victims({"only": 10}, excess_bytes=11) == []
