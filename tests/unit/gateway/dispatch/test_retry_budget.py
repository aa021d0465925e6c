"""How much may be tried again."""

from sluicegate.gateway.dispatch.budget import BASE_RATE, WINDOW, RetryBudget
from tests.support.clock import Clock


def test_an_idle_gateway_may_retry_what_the_base_rate_gives_in_one_window() -> None:
    budget = RetryBudget(clock=Clock())

    assert budget.spend(1000) == BASE_RATE * WINDOW
    assert budget.spend(1) == 0


def test_a_fifth_of_what_was_tried_first_may_be_tried_again() -> None:
    budget = RetryBudget(clock=Clock())
    budget.spend(1000)

    budget.earn(1000)

    assert budget.spend(1000) == 200


def test_what_is_of_use_as_a_whole_only_gets_all_or_nothing() -> None:
    budget = RetryBudget(clock=Clock())

    assert budget.spend(1000, whole=True) == 0
    assert budget.spend(100, whole=True) == 100


def test_credit_comes_back_with_time_and_old_credit_goes() -> None:
    clock = Clock()
    poor, rich = RetryBudget(clock=clock), RetryBudget(clock=clock)
    poor.spend(1000)
    rich.earn(100_000)

    clock.advance(10 * WINDOW)

    assert poor.spend(1000) == rich.spend(1000) - 1 == 99


def test_retries_under_steady_load_stay_near_the_ratio() -> None:
    clock = Clock()
    budget = RetryBudget(clock=clock)
    retried = 0

    for _ in range(1000):
        clock.advance(0.1)
        budget.earn(50)
        retried += budget.spend(50)

    assert retried < 0.2 * 50_000 + BASE_RATE * 100 + BASE_RATE * WINDOW
