"""The checks of single faults find what they are there for."""

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any  # parts of a topology, and fields

import msgspec
import pytest

from loadtests.faults.batch import each_line_is_there_once
from loadtests.faults.catalogue import Case
from loadtests.faults.changes import changes_worked, nothing_grows, rise
from loadtests.faults.command import FAULTS
from loadtests.faults.container_faults import all_gateways_serve
from loadtests.faults.judge import LIMITED, Sent
from loadtests.faults.model import ModelOracle, write_algorithm, write_revision
from loadtests.faults.process_faults import (
    breaker_opens,
    few_attempts,
    limits_hold,
    loss_is_bounded,
    misses_go_on,
    over_admission_bound,
)
from loadtests.process_resources import resources_of
from tools.monitoring.rules import alerts

TENANT = f"{LIMITED}0"
COUNTS = {"computed": 0.0, "failed": 0.0, "retried": 0.0, "hedged": 0.0, "cache breaker": 0.0}


def sent(due: float, **changes: Any) -> Sent:
    usual = Sent(due=due, latency=0.01, status=200, tenant=TENANT, is_right=True, id=f"{due}")
    return msgspec.structs.replace(usual, **changes)


def case(
    *answers: Sent, topology: object = None, part: str = "cache", ended: float = 20.0, **end: float
) -> Case:
    grown = COUNTS | {name.replace("_", " "): count for name, count in end.items()}
    return Case(
        topology=topology,
        part=part,
        sent=answers,
        begun=10.0,
        ended=ended,
        counters={"start": dict(COUNTS), "end": grown},
        figures={},
    )


def failover(admitted: int, *, away: float) -> Case:
    """Return a failover in which a tenant had so many requests admitted at once."""
    notes = {"away": away}
    topology = SimpleNamespace(notes=notes, keys=(TENANT,), setup=SimpleNamespace(workers=2))
    refused = [sent(20.0 + n / 50, status=429) for n in range(300 - admitted)]
    return case(*(sent(20.0) for _ in range(admitted)), *refused, topology=topology)


def test_a_failover_is_judged_by_the_seconds_that_it_took() -> None:
    assert over_admission_bound(2.7, workers=2, offered=50.0) == pytest.approx(55.7, abs=0.1)
    assert not [*limits_hold(failover(150, away=2.7))]
    assert "over the limit" in "".join(limits_hold(failover(250, away=2.7)))
    assert "without a primary" in "".join(limits_hold(failover(100, away=60.0)))


def test_items_that_are_tried_too_often_are_found() -> None:
    assert not [*few_attempts(case(computed=100.0, retried=10.0))]
    assert [*few_attempts(case(computed=100.0, retried=10.0, hedged=20.0))]


def test_a_breaker_that_never_opened_is_found() -> None:
    opens = breaker_opens("cache")

    assert [*opens(case())]
    assert not [*opens(case(cache_breaker=1.0))]
    assert not [*opens(case(part="worker"))]


def test_counters_that_nobody_tells_are_found_and_restarts_are_not() -> None:
    assert [*few_attempts(case())]
    restarted = case(computed=90.0, retried=60.0)
    restarted.counters["start"] |= {"computed": 100.0, "retried": 70.0}  # type: ignore[index, operator]
    assert [*few_attempts(restarted)]


def test_a_gateway_that_does_not_tell_its_requests_is_found() -> None:
    services = {"gateway-1": None, "gateway-2": None, "billing": None}
    found = case(topology=SimpleNamespace(services=services))
    found.counters.update(well={"gateway-1": 1.0}, end={"gateway-1": 2.0})  # type: ignore[attr-defined]

    assert [*all_gateways_serve(found)] == ["gateway-2 is given no requests, or does not tell"]


def test_misses_that_wait_for_a_redis_are_found() -> None:
    before, during, after = sent(5.0), sent(15.0, latency=0.05), sent(25.0, latency=0.04)
    go_on = misses_go_on("cache")

    assert [*go_on(case(before, during))]
    assert not [*go_on(case(before, during, after))]
    assert not [*go_on(case(before, msgspec.structs.replace(during, is_repeat=True)))]


def test_lost_answers_that_are_old_or_that_nobody_counts_are_found() -> None:
    def found(*answers: Sent, counted: int | None, before: int = 0) -> list[str]:
        notes = {"gaps": before, "cut": 10.0}
        topology = SimpleNamespace(
            billed=lambda _: [], ask_ledger=lambda _: [(counted,)], notes=notes
        )
        return [*loss_is_bounded(case(*answers, topology=topology))]

    assert found(sent(9.5), counted=None) == ["1 answers are lost, and none is counted"]
    assert not found(sent(9.5), counted=1)
    assert found(sent(9.5), counted=1, before=1)
    assert not found(counted=None)
    assert found(sent(8.0), counted=1) == ["an answer is lost that came 1.99 s before the cut"]


@pytest.mark.parametrize(
    ("ids", "billed", "finding"),
    [
        (["0", "1"], [("b-0", 1, 1), ("b-1", 1, 1)], ""),
        (["0"], [("b-0", 1, 1), ("b-1", 1, 1)], "1 lines are lost"),
        (["0", "1", "1"], [("b-0", 1, 1), ("b-1", 1, 1)], "1 lines are there twice"),
        (["0", "1"], [("b-0", 1, 1)], "1 lines are not billed"),
        (["0", "1"], [("b-0", 1, 1), ("b-1", 2, 2)], "1 lines are billed twice"),
    ],
)
def test_lines_of_a_batch_that_are_not_there_once_are_found(
    ids: list[str], billed: list[tuple[str, int, int]], finding: str
) -> None:
    lines = [msgspec.json.encode({"custom_id": id_, "response": {"body": {}}}) for id_ in ids]
    ended = {"request_counts": {"failed": 0}}
    topology = SimpleNamespace(
        notes={"batch": ("b", ended, lines, ["one", "two"])},
        oracle=SimpleNamespace(are_right=lambda *_: True),
        ask_ledger=lambda _: billed,
    )

    assert ", ".join(each_line_is_there_once(case(topology=topology))) == finding


def test_an_answer_of_many_items_is_right_if_each_is(tmp_path: Path) -> None:
    write_revision(tmp_path, 1)
    write_algorithm(tmp_path)
    oracle = ModelOracle([tmp_path], is_mixed=True)
    large = next(each for each in oracle.questions(1) if each.items > 1)
    asked = msgspec.json.decode(large.body)["input"]
    ((revision, tokenizer),) = oracle._known.items()
    results = [{"embedding": oracle.embedding(tokenizer, text).tolist()} for text in asked]

    def answer(*found: object) -> bytes:
        return msgspec.json.encode({"revision": revision, "results": found})

    assert len(asked) == large.items
    assert oracle.is_right(large, answer(*results))
    assert not oracle.is_right(large, answer(*results[1:], results[0]))
    assert not oracle.is_right(large, answer(*results[1:]))


def test_a_rise_is_told_from_noise_and_from_the_beginning() -> None:
    noise = [(float(at), 100.0 + at % 2) for at in range(60)]
    leak = [(float(at), 100.0 + at) for at in range(60)]
    filling = [(float(at), float(min(at, 20))) for at in range(60)]

    assert rise(noise)[1] == pytest.approx(0.0, abs=0.5)
    assert rise(leak)[1] == pytest.approx(39.0, abs=1.0)
    assert rise(filling)[1] == pytest.approx(0.0, abs=0.5)


def test_a_process_that_grows_and_changes_that_fail_are_found() -> None:
    def soaked(step: float) -> Case:
        points = [(float(at), 5e7 + step * at) for at in range(100)]
        samples = {("worker", name): points for name in ("memory", "files", "threads", "tasks")}
        resources = SimpleNamespace(samples=samples, log_bytes=0)
        operator = SimpleNamespace(made=Counter(key=2), failed=Counter(key=int(step > 0)))
        notes = {"resources": resources, "operator": operator}
        return case(topology=SimpleNamespace(notes=notes), ended=200.0)

    assert not [*nothing_grows(soaked(0.0))]
    assert not [*changes_worked(soaked(0.0))]
    assert [*nothing_grows(soaked(1e6))]
    unseen = soaked(0.0)
    unseen.topology.notes["resources"].samples.clear()
    assert [*nothing_grows(unseen)] == ["nobody looked at files, memory, tasks, threads"]
    assert [*changes_worked(soaked(1e6))]


def test_resources_are_read_of_a_process_that_runs_alone() -> None:
    assert resources_of(os.getpid())["memory"] > 1_000_000
    assert not resources_of(2**22 + 1)


def test_each_fault_has_a_name_of_its_own_and_alerts_that_exist() -> None:
    mine = [fault for fault in FAULTS if fault.topology == "processes"]
    known = {alert.name for alert in alerts()}
    named = {
        word
        for fault in mine
        if "should fire" in fault.what
        for word in fault.what.partition(";")[2].replace(",", " ").split()
        if word[0].isupper()
    }

    assert len({fault.name for fault in mine}) == len(mine)
    assert len(named) >= 10
    assert named <= known
