"""Tests the judging of `make check-compose`: episodes, windows, the order of an upgrade."""

import re
from collections import defaultdict

import msgspec
import pytest

from loadtests.arena import topology
from loadtests.arena.images import ROOT
from loadtests.arena.judging import LedgerComparison, Verdict, Window, judge
from loadtests.arena.load import RequestOutcome
from loadtests.arena.system import Arena, ArenaError
from loadtests.compose.check import chosen_losses
from loadtests.compose.losses import HOLD, NetworkCut, losses, window
from loadtests.compose.restoring import LASTING_KEYS
from loadtests.compose.rotation import ADMIN_KEY, SECOND_ADMIN_KEY, SECOND_TOKEN, TOKEN, plan
from loadtests.compose.run import LONGEST, Episode, Phase
from loadtests.compose.upgrade import order
from testing.compose_files import OBSERVED
from testing.valkey import Valkey

SERVICES = topology.services(defaultdict(str), files=OBSERVED)


def verdict(*statuses: int, allowed: Window) -> Verdict:
    """Judge one request a second with these statuses, a loss from second 2 to 4."""
    sent = [
        RequestOutcome(due=float(at), latency=0.01, status=status, is_right=True, items=1)
        for at, status in enumerate(statuses)
    ]
    return judge(sent, allowed, begun=2.0, ended=4.0)


def phase(*verdicts: Verdict, allowed: float = 0.001, missing: int = 0, trouble: str = "") -> Phase:
    episodes = [
        Episode(name=f"part {n}", took=2.0, window="never", verdict=each, trouble=trouble)
        for n, each in enumerate(verdicts)
    ]
    books = LedgerComparison(
        answered=1, billed=1, missing=missing, twice=0, refused_and_billed=0, unanswered=0,
        items_answered=1, items_billed=1,
    )  # fmt: skip
    return Phase(name="losses", episodes=episodes, books=books, errors_allowed=allowed)


def test_errors_within_a_window_are_no_finding_and_others_are_bounded_by_their_share() -> None:
    within = verdict(200, 200, 503, 503, 200, allowed=Window(is_open=True))
    one = verdict(503, *[200] * 1000, allowed=Window())
    two = verdict(503, 503, *[200] * 1000, allowed=Window())

    assert phase(within).findings() == []
    assert phase(one).findings() == []
    assert phase(two).findings() == ["losses: 2 of 1002 failed outside of windows"]
    assert phase(one, allowed=0.0).findings() == ["losses: 1 of 1001 failed outside of windows"]


def test_an_answer_that_is_not_billed_and_a_part_that_did_not_come_back_are_findings() -> None:
    fine = verdict(200, allowed=Window())

    found = phase(fine, missing=3, trouble="database is not healthy").findings()

    assert found == [
        "losses: 3 answers are not in the ledger",
        "losses: part 0: database is not healthy",
    ]


def test_what_is_billed_wrongly_or_not_looked_at_is_a_finding() -> None:
    fine = phase(verdict(200, allowed=Window()))
    books = msgspec.structs.replace(fine.books, unanswered=1, shared=2, items_answered=9)

    assert msgspec.structs.replace(fine, books=books).findings() == [
        "losses: 2 answers have the id of another",
        "losses: 1 billed, of which nobody asked",
        "losses: 1 items billed, 9 answered",
    ]
    slow = msgspec.structs.replace(fine.episodes[0], took=LONGEST + 1)
    assert msgspec.structs.replace(fine, episodes=[slow]).findings() == [
        "losses: part 0: took 91 s"
    ]
    assert phase().findings() == ["losses: nothing was lost or replaced"]
    with pytest.raises(ArenaError, match="nothing is named databse: "):
        chosen_losses(Arena(SERVICES), ["databse"])


def test_every_container_that_goes_on_and_every_network_is_lost() -> None:
    found = losses(Arena(SERVICES), topology.networks())

    names = {each.name for each in found}
    going_on = set(SERVICES) - {"ledger-init"}
    assert names == going_on | {f"network {name}" for name in topology.networks()}


def test_a_network_is_cut_between_containers_that_run() -> None:
    cut = NetworkCut(Arena(SERVICES), "database")

    assert {each.name for each in cut.members} == {"database", "gateway-1", "gateway-2", "billing"}


def test_callers_may_notice_the_balancer_its_network_the_gateways_and_no_model_at_all() -> None:
    noticed = {name for name, service in SERVICES.items() if window(service) != Window()}

    assert noticed == {"load-balancer", "gateway-1", "gateway-2"}
    noticed = {
        each.name
        for each in losses(Arena(SERVICES), topology.networks())
        if each.name.startswith("network ") and each.window != Window()
    }
    assert noticed == {"network edge", "network backends"}


def test_a_loss_is_longer_than_a_failover_of_the_state_takes_to_begin() -> None:
    script = (ROOT / "deploy/sentinel.sh").read_text()

    (after,) = re.findall(r"down-after-milliseconds state (\d+)", script)
    assert 2 * int(after) / 1000 < HOLD


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
    services = {
        name: each.environment | {TOKEN: "old", ADMIN_KEY: "old"}
        for name, each in SERVICES.items()
        if name.startswith(("backend-", "gateway-"))
    }
    given = {
        name: msgspec.structs.replace(SERVICES[name], environment=environment)
        for name, environment in services.items()
    }

    for restart in plan(given, "new", "newer"):
        services[restart.service] = services[restart.service] | restart.variables
        sent = {each[TOKEN] for name, each in services.items() if name.startswith("gateway-")}
        for name, each in services.items():
            if name.startswith("backend-"):
                assert sent <= {each[TOKEN], each.get(SECOND_TOKEN)}

    assert {each[TOKEN] for each in services.values()} == {"new"}
    assert {each.get(SECOND_TOKEN) or "" for each in services.values()} == {""}
    assert {each.get(SECOND_ADMIN_KEY) or "" for each in services.values()} == {""}
