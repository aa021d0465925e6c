"""How long a crashed process waits for its restart."""

from itertools import accumulate, repeat

from sluicegate.gateway.supervisor.child import HEALTHY, LONGEST_DELAY, restart_delay


def test_each_crash_doubles_the_wait_up_to_the_longest() -> None:
    def after(delay: float, lived: float) -> float:
        return restart_delay(delay, lived=lived)

    waits = list(accumulate(repeat(0.0, 8), after, initial=0.0))

    assert waits[1:] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_DELAY, LONGEST_DELAY]


def test_a_process_that_was_healthy_starts_over() -> None:
    delay = restart_delay(LONGEST_DELAY, lived=HEALTHY)

    assert delay == 0.1
    assert restart_delay(delay, lived=0.0) == 0.2
