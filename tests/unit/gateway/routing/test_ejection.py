"""Ejecting a backend that fails, and readmitting it."""

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.routing.ejection import CLEAN, Ejection, after_failure, after_success

RULES = RoutingConfig(eject_after=5, eject_share=0.2, eject_for=10.0)


def fail(ejection: Ejection, now: float, times: int = 1) -> Ejection:
    for _ in range(times):
        ejection = after_failure(ejection, now, RULES)
    return ejection


def test_the_fifth_failure_in_a_row_ejects() -> None:
    assert not fail(CLEAN, 100.0, times=4).holds(100.0)
    assert fail(CLEAN, 100.0, times=5).holds(109.9)
    assert not fail(CLEAN, 100.0, times=5).holds(110.0)


def test_a_success_starts_the_count_anew() -> None:
    shaken = after_success(fail(CLEAN, 100.0, times=4), 100.0, RULES)

    assert not fail(shaken, 100.0, times=4).holds(100.0)


def test_failures_of_calls_already_in_flight_do_not_lengthen_an_ejection() -> None:
    ejected = fail(CLEAN, 100.0, times=5)

    assert fail(ejected, 101.0, times=50) == ejected


def test_a_failure_after_the_return_ejects_at_once_and_for_longer() -> None:
    ejected = fail(CLEAN, 100.0, times=5)

    again = fail(ejected, 111.0)

    assert again.holds(130.9)
    assert not again.holds(131.0)


def test_a_late_success_does_not_spare_a_backend_its_trial() -> None:
    ejected = fail(CLEAN, 100.0, times=5)

    assert fail(after_success(ejected, 101.0, RULES), 111.0).holds(130.9)


def test_ejections_are_forgotten_after_a_good_while() -> None:
    ejected = fail(CLEAN, 100.0, times=5)

    early = after_success(ejected, 115.0, RULES)
    late = after_success(ejected, 121.0, RULES)

    assert early.times == 1
    assert late == CLEAN


def test_a_recent_failure_does_not_keep_old_ejections_in_mind() -> None:
    ejected = fail(CLEAN, 100.0, times=5)
    back = fail(after_success(ejected, 115.0, RULES), 120.0)

    later = after_success(back, 121.0, RULES)

    assert fail(later, 121.0, times=5).holds(130.9)
    assert not fail(later, 121.0, times=5).holds(131.0)


def test_a_share_of_failures_ejects_though_none_follows_another() -> None:
    ejection = CLEAN
    for number in range(40):
        now = 100.0 + number / 100
        if number % 3:
            ejection = after_success(ejection, now, RULES)
        else:
            ejection = after_failure(ejection, now, RULES)

    assert ejection.holds(101.0)


def test_successes_before_the_first_failure_are_not_counted() -> None:
    ejection = CLEAN
    for _ in range(1000):
        ejection = after_success(ejection, 100.0, RULES)
    ejection = fail(ejection, 100.0)
    for _ in range(12):
        ejection = after_success(ejection, 100.0, RULES)

    assert not fail(ejection, 100.0).holds(100.0)
    assert fail(ejection, 100.0, times=2).holds(100.0)


def test_few_failures_among_many_calls_do_not_eject() -> None:
    ejection = CLEAN
    for number in range(1000):
        now = 100.0 + number / 100
        if number % 10:
            ejection = after_success(ejection, now, RULES)
        else:
            ejection = after_failure(ejection, now, RULES)
        assert not ejection.holds(now)
