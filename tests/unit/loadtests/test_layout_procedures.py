"""Rotation, upgrade and restore of the production layout go by the documented steps."""

from collections import defaultdict

import msgspec

from loadtests.containers import services
from loadtests.faults.containers import ADMIN_KEY
from loadtests.faults.procedures import (
    LASTING_KEYS,
    SECOND_ADMIN_KEY,
    SECOND_TOKEN,
    TOKEN,
    order,
    restarts,
)
from testing.valkey import Valkey

SERVICES = services.services(defaultdict(str))


def test_an_upgrade_begins_with_what_uses_the_ledger_and_ends_with_the_balancer() -> None:
    names = order(SERVICES)

    assert names[:6] == [
        "billing", "request-log", "gateway-1", "gateway-2", "backend-eu", "backend-us",
    ]  # fmt: skip
    assert names[-1] == "load-balancer"
    assert set(names) == set(SERVICES) - {"ledger-init"}


def test_what_a_restore_of_the_state_must_bring_back_is_what_does_not_expire() -> None:
    with Valkey() as server:
        server.ask("SET limit 1 EX 60")
        server.ask("XADD events * a b")
        server.ask("SET config 1")

        found = server.ask(f'EVAL "{LASTING_KEYS}" 0')

    assert found.split(b"\r\n")[2:-1:2] == [b"stream events", b"string config"]


def test_at_each_restart_of_a_rotation_backends_accept_what_gateways_send() -> None:
    values = {
        name: each.environment | {TOKEN: "old", ADMIN_KEY: "old"}
        for name, each in SERVICES.items()
        if name.startswith(("backend-", "gateway-"))
    }
    given = {
        name: msgspec.structs.replace(SERVICES[name], environment=environment)
        for name, environment in values.items()
    }

    for restart in restarts(given, "new", "newer"):
        values[restart.service] = values[restart.service] | restart.variables
        sent = {each[TOKEN] for name, each in values.items() if name.startswith("gateway-")}
        for name, each in values.items():
            if name.startswith("backend-"):
                assert sent <= {each[TOKEN], each.get(SECOND_TOKEN)}

    assert {each[TOKEN] for each in values.values()} == {"new"}
    assert {each.get(SECOND_TOKEN) or "" for each in values.values()} == {""}
    assert {each.get(SECOND_ADMIN_KEY) or "" for each in values.values()} == {""}
