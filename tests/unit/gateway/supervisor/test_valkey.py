"""How the embedded Valkeys are run."""

from pathlib import Path

from sluicegate.gateway.supervisor.spec import ProcessRole, ProcessSpec
from sluicegate.gateway.supervisor.valkey import (
    STATE_OPTIONS,
    cache_options,
    find_program,
    valkey_spec,
)


def spec_of(role: ProcessRole, options: tuple[str, ...]) -> ProcessSpec:
    return valkey_spec(role, options, program=Path("v"), sockets=Path("/s"), data=Path("/d"))


def options(argv: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(argv[1::2], argv[2::2], strict=True))


def test_the_program_of_the_wheel_is_found() -> None:
    assert find_program().is_file()


def test_the_cache_is_bounded_evicts_and_keeps_nothing() -> None:
    spec = spec_of(ProcessRole.VALKEY_CACHE, cache_options(1000))

    given = options(spec.argv)
    assert given["--maxmemory"] == "1000"
    assert given["--maxmemory-policy"] == "allkeys-lfu"
    assert (given["--appendonly"], given["--save"]) == ("no", "")


def test_the_state_evicts_nothing_and_keeps_everything() -> None:
    spec = spec_of(ProcessRole.VALKEY_STATE, STATE_OPTIONS)

    given = options(spec.argv)
    assert given["--maxmemory-policy"] == "noeviction"
    assert (given["--appendonly"], given["--appendfsync"]) == ("yes", "everysec")
    assert "--maxmemory" not in given


def test_neither_listens_on_a_port() -> None:
    spec = spec_of(ProcessRole.VALKEY_STATE, STATE_OPTIONS)

    given = options(spec.argv)
    assert given["--port"] == "0"
    assert (given["--unixsocket"], given["--unixsocketperm"]) == ("/s/state.sock", "700")
