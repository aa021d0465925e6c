"""Tests what a record says of the machine and its interpreter."""

import platform

import msgspec

from loadtests.machine import Machine, this_machine

RECORD = Machine(
    cpu="a CPU", cores=2, memory_gib=1.0, python="3.11.7", date="2026-01-01", commit="abc1234"
)


def test_the_headline_has_the_interpreters_version_and_its_speed() -> None:
    machine = msgspec.structs.replace(RECORD, interpreter_speed=420)

    assert machine.headline == "a CPU, 2 cores, Python 3.11.7 of speed 420, 2026-01-01, abc1234"


def test_a_record_without_a_speed_is_read_and_says_none() -> None:
    encoded = msgspec.json.encode(
        {name: value for name, value in msgspec.structs.asdict(RECORD).items() if value is not None}
    )

    read = msgspec.json.decode(encoded, type=Machine)

    assert b"speed" not in encoded
    assert read == RECORD
    assert read.interpreter == "Python 3.11.7"


def test_the_speed_of_this_interpreter_is_measured() -> None:
    machine = this_machine()

    assert machine.python == platform.python_version()
    assert machine.interpreter_speed is not None
    assert machine.interpreter_speed > 0
