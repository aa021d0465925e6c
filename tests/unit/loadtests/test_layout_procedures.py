"""A restore of the state must bring back what does not expire."""

from loadtests.faults.container_faults import LASTING_KEYS
from testing.valkey import Valkey


def test_what_a_restore_of_the_state_must_bring_back_is_what_does_not_expire() -> None:
    with Valkey() as server:
        server.ask("SET limit 1 EX 60")
        server.ask("XADD events * a b")
        server.ask("SET config 1")

        found = server.ask(f'EVAL "{LASTING_KEYS}" 0')

    assert found.split(b"\r\n")[2:-1:2] == [b"stream events", b"string config"]
