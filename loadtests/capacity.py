"""Finds the highest rate that a system sustains, by bisection with an open-loop load."""

from collections.abc import Callable

from loadtests.open_loop import Answer

_SECONDS = 8.0  # a run at one rate


def capacity(
    run: Callable[[float, float], list[Answer]],
    judge: Callable[[list[Answer]], bool],
    *,
    most: float = 600.0,
) -> float:
    """Return the highest rate up to `most` a second whose answers pass, by bisection.

    `run` takes a rate and seconds.
    """
    low, high = most / 12, most
    for _ in range(6):
        rate = (low + high) / 2
        if judge(run(rate, _SECONDS)):
            low = rate
        else:
            high = rate
    return low


def sustained(answers: list[Answer], deadline: float, done: Callable[[Answer], bool]) -> bool:
    """Return whether 99 % were answered, without a queue that grew in the last second.

    The queue holds nearly a deadline's work: a short run fills it rather than refuse.
    """
    last = max(answer.due for answer in answers) - 1.0
    waits = sorted(answer.latency for answer in answers if answer.due > last)
    return answered(answers, done) and waits[len(waits) // 2] < deadline / 4


def answered(answers: list[Answer], done: Callable[[Answer], bool]) -> bool:
    """Return whether 99 % were answered, though a queue may have grown."""
    return sum(map(done, answers)) >= 0.99 * len(answers)
