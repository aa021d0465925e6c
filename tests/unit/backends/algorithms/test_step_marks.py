"""The marks say whose step runs, and what those of each have taken."""

import os

from sluicegate.backends.algorithms.step_marks import StepMarks


def test_both_sides_see_the_step_that_runs() -> None:
    backend, descriptor = StepMarks.create()
    host = StepMarks(descriptor)
    os.close(descriptor)

    host.begin(3)
    step = backend.step()
    host.end(3)

    assert step is not None
    assert step.slot == 3
    assert backend.step() is None


def test_what_others_took_is_told_apart() -> None:
    marks, descriptor = StepMarks.create()
    os.close(descriptor)

    marks.begin(0)
    while_it_runs = marks.busy_of_others(0), marks.busy_of_others(1)
    marks.end(0)

    assert while_it_runs[0] == 0.0
    assert while_it_runs[1] > 0.0
    assert marks.busy_of_others(0) == 0.0
    assert marks.busy_of_others(1) >= while_it_runs[1]


def test_what_no_mark_follows_makes_them_inexact() -> None:
    marks, descriptor = StepMarks.create()
    os.close(descriptor)

    assert marks.are_exact
    marks.note_unmarked()
    assert not marks.are_exact
