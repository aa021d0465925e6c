"""Silence is added up while a process could have given a sign of life, and only then."""

import mmap
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from sluicegate.gateway.supervisor.liveness import LONGEST_STEP, Activity, Silence, activity_of

ASLEEP = Activity(state="S")


def test_a_process_that_gives_signs_is_never_silent() -> None:
    silence = Silence()

    for _ in range(30):
        silence.record_response()
        assert silence.look(1.0, ASLEEP) == 0.0


def test_silence_adds_up_and_ends_with_the_next_sign() -> None:
    silence = Silence()
    silence.look(1.0, ASLEEP)

    passed = [silence.look(1.0, ASLEEP) for _ in range(3)]
    silence.record_response()

    assert passed == [1.0, 2.0, 3.0]
    assert silence.look(1.0, ASLEEP) == 0.0


def test_a_frozen_process_is_silent_though_it_runs_no_more() -> None:
    silence = Silence()
    silence.look(1.0, ASLEEP)

    assert silence.look(1.0, Activity(state="T", processor_time=3.0)) == 1.0


def test_a_machine_that_slept_is_no_silence_of_the_process() -> None:
    silence = Silence()
    silence.look(1.0, ASLEEP)

    assert silence.look(3600.0, ASLEEP) == LONGEST_STEP


def test_a_process_that_spins_is_judged_by_the_time_it_was_given() -> None:
    silence = Silence()
    silence.look(1.0, Activity(state="R", processor_time=7.0))

    on_a_full_machine = silence.look(1.0, Activity(state="R", processor_time=7.05))
    alone = silence.look(1.0, Activity(state="R", processor_time=8.05))

    assert round(on_a_full_machine, 2) == 0.05
    assert round(alone, 2) == 1.05


def test_a_process_that_waits_for_a_disk_is_not_judged() -> None:
    silence = Silence()
    silence.look(1.0, ASLEEP)

    assert silence.look(1.0, Activity(state="D")) == 0.0


def test_where_the_kernel_says_nothing_the_clock_counts() -> None:
    silence = Silence()
    silence.look(1.0, None)

    assert silence.look(1.0, None) == 1.0


def test_the_kernel_tells_of_this_process() -> None:
    activity = activity_of(os.getpid())

    assert activity is not None
    assert activity.processor_time > 0.0
    assert activity.private_bytes > 10_000_000


def private_bytes() -> int:
    activity = activity_of(os.getpid())
    assert activity is not None
    return activity.private_bytes


def test_mapped_files_are_not_private_memory() -> None:
    # Not a temporary file, which may be in memory.
    path, before = Path(sys.executable), private_bytes()

    with path.open("rb") as file, ExitStack() as stack:
        for _ in range(2**26 // path.stat().st_size + 1):
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            sum(stack.enter_context(content)[:: mmap.PAGESIZE])
        after = private_bytes()

    assert after - before < 2**25


def test_shared_memory_without_a_file_counts() -> None:
    before = private_bytes()

    with mmap.mmap(-1, 2**26) as memory:
        memory.write(bytes(2**26))

        assert private_bytes() - before > 2**25


def test_there_is_nothing_to_tell_of_a_process_that_is_not_there() -> None:
    assert activity_of(2**22 + 1) is None
