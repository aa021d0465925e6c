"""How long a crashed process waits for its restart."""

from gateway.supervisor.backoff import HEALTHY, LONGEST, Backoff


def test_each_crash_doubles_the_wait_up_to_the_longest() -> None:
    backoff = Backoff()

    waits = [backoff.after(0.0) for _ in range(8)]

    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST, LONGEST]


def test_a_process_that_was_healthy_starts_over() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.after(0.0)

    assert backoff.after(HEALTHY) == 0.1
    assert backoff.after(0.0) == 0.2
