"""Hostile algorithms in a real backend, all at once: each harms its own items, and nothing else.

The backend, its other models and the processes of other algorithms go on as before.
"""

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from sluicegate.backends.algorithms.confinement import NICENESS
from sluicegate.wire.protocol import ClassifyParameters, Done, Failed, InferParameters, Task
from testing.hostile_algorithms import HARM, HEAD, IMPORTS, write_algorithm
from testing.model_repository import write_repository
from testing.ports import free_port
from testing.waiting import wait_until
from tests.support.backend_process import ask, infos, request, serving

Outcomes = dict[str, list[Done | Failed]]
KILLED = ["exit", "stop"]
COMPUTING = ["regex", "loop", "spinning", "mapped", "recursion"]
"""Cases that end their process once they have computed for long enough. On a busy machine they are
starved before that, and no item is to blame."""
FAILED = {
    "signals": "PermissionError",
    "fork": "PermissionError",
    "threads": "RuntimeError",
    "memory": "MemoryError",
    "nan": "NaN",
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    models = write_repository(tmp_path_factory.mktemp("hostile") / "models", real=True)
    for name, harm in HARM.items():
        # What fails by itself is given the time to do so on a slow machine.
        seconds = 20.0 if name in FAILED else 1.0
        write_algorithm(models, name, HEAD + "    " + harm.strip() + "\n", time=seconds)
    write_algorithm(models, "innocent", HEAD + "    pass\n")
    for name, text in IMPORTS.items():
        write_algorithm(models, name, text, import_time=1.0)
    port = free_port()
    with serving(models, port) as process:
        yield port
        assert process.poll() is None


def infer(port: int, model: str, *items: object) -> list[Done | Failed]:
    return ask(port, infos(port)[model], Task.INFER, InferParameters(), list(items))


def host_of(port: int, model: str) -> int:
    """Return the id of the process that answers for an algorithm."""
    (outcome,) = infer(port, model, "good film")
    assert isinstance(outcome, Done), outcome
    return int(msgspec.json.decode(outcome.result))


@pytest.fixture(scope="module")
def outcomes(port: int) -> Outcomes:
    """Send every harmful item beside an innocent one, all at once, while others are answered."""
    mood, host = infos(port)["mood"], host_of(port, "innocent")
    with ThreadPoolExecutor(len(HARM)) as pool:
        asked = {name: pool.submit(infer, port, name, "good film", "harm") for name in HARM}
        answered = 0
        while not all(future.done() for future in asked.values()):
            texts: list[object] = [f"good film {answered}"]
            found = ask(port, mood, Task.CLASSIFY, ClassifyParameters(), texts)
            assert all(isinstance(outcome, Done) for outcome in found), found
            assert host_of(port, "innocent") == host
            answered += 1
    assert answered
    return {name: future.result() for name, future in asked.items()}


@pytest.mark.parametrize("name", HARM)
def test_an_innocent_item_beside_a_harmful_one_is_answered(outcomes: Outcomes, name: str) -> None:
    innocent, _ = outcomes[name]

    assert isinstance(innocent, Done), innocent


@pytest.mark.parametrize("name", KILLED)
def test_an_item_that_ended_its_process_is_refused(
    port: int, outcomes: Outcomes, name: str
) -> None:
    _, first = outcomes[name]
    _, second = infer(port, name, "good film", "harm")

    for outcome in (first, second):
        assert isinstance(outcome, Failed), outcome
        assert (outcome.status, outcome.code, outcome.retryable) == (422, "algorithm_killed", False)


@pytest.mark.parametrize("name", COMPUTING)
def test_an_item_that_computes_for_ever_ends_with_its_process(
    port: int, outcomes: Outcomes, name: str
) -> None:
    _, outcome = outcomes[name]

    assert isinstance(outcome, Failed), outcome
    is_starved = (outcome.status, outcome.code, outcome.retryable) == (503, "overloaded", True)
    assert is_starved or outcome.code == "algorithm_killed", outcome
    assert name in {model for model, _ in lost_hosts(port)}


def test_an_item_that_cannot_be_cancelled_was_too_slow_and_is_then_refused(
    port: int, outcomes: Outcomes
) -> None:
    _, first = outcomes["deaf"]
    assert isinstance(first, Failed)
    assert first.code == "algorithm_too_slow"

    def is_refused() -> bool:
        _, outcome = infer(port, "deaf", "good film", "harm")
        return isinstance(outcome, Failed) and outcome.code == "algorithm_killed"

    wait_until(is_refused, within=30.0)


def lost_hosts(port: int) -> set[tuple[str, str]]:
    """Return of which models processes were lost, and why, by the page for Prometheus."""
    page = request(port, "GET", "/metrics")[1].decode()
    found = re.findall(r'lost_algorithm_hosts_total{model="(.*)",reason="(.*)"} \d', page)
    return set(found)


def test_processes_that_were_lost_are_counted_by_model_and_reason(
    port: int, outcomes: Outcomes
) -> None:
    assert set(outcomes) == set(HARM)

    lost = lost_hosts(port)

    assert {("stop", "held_by_one_step"), ("exit", "ended")} <= lost
    models = {model for model, _ in lost}
    assert models >= {*KILLED, *COMPUTING}
    assert "innocent" not in models


def test_what_was_lost_starts_again_with_the_lowest_priority(port: int, outcomes: Outcomes) -> None:
    assert set(outcomes) == set(HARM)
    for number in range(2):
        infer(port, "exit", f"harm {number}")

    def niceness(name: str) -> int | None:
        (outcome,) = infer(port, name, "good film")
        if isinstance(outcome, Failed):  # it is being started
            return None
        return os.getpriority(os.PRIO_PROCESS, int(msgspec.json.decode(outcome.result)))

    assert niceness("innocent") == max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
    wait_until(lambda: niceness("exit") == 19, within=60.0)


@pytest.mark.parametrize("name", FAILED)
def test_an_error_of_the_code_is_a_failure(outcomes: Outcomes, name: str) -> None:
    _, outcome = outcomes[name]

    assert isinstance(outcome, Failed), outcome
    assert (outcome.status, outcome.code, outcome.retryable) == (500, "algorithm_failed", False)
    assert FAILED[name] in outcome.detail


@pytest.mark.parametrize("name", HARM)
def test_an_algorithm_answers_again_after_a_harmful_item(
    port: int, outcomes: Outcomes, name: str
) -> None:
    def is_answered() -> bool:
        (outcome,) = infer(port, name, "good film")
        return isinstance(outcome, Done)

    wait_until(is_answered, within=30.0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("import-hangs", "more than 1 s"),
        ("import-ends", "ends the process"),
    ],
)
def test_code_that_cannot_be_imported_is_broken_by_name(port: int, name: str, said: str) -> None:
    assert name not in infos(port)
    assert said in request(port, "GET", "/v1/state")[1].decode(errors="replace")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_backend_whose_algorithm_hangs_stops_and_takes_it_along(
    tmp_path: Path, sent: signal.Signals
) -> None:
    models = write_repository(tmp_path / "models", real=True)
    write_algorithm(models, "stuck", f"{HEAD}    {HARM['loop']}\n", time=600.0)
    port = free_port()
    at_once = {"SLUICEGATE_BACKEND_SHUTDOWN_DELAY": "0", "SLUICEGATE_BACKEND_DRAIN": "0"}
    with serving(models, port, environment=at_once) as process, ThreadPoolExecutor(1) as pool:
        host = Path(f"/proc/{host_of(port, 'stuck')}/stat")
        stuck = pool.submit(infer, port, "stuck", "harm")
        before = cpu_ticks(host)
        wait_until(lambda: cpu_ticks(host) > before + 5, within=120.0)

        process.send_signal(sent)
        process.wait(60.0)

        wait_until(lambda: not host.exists(), within=30.0)
        assert stuck.exception(60.0) is not None


def cpu_ticks(stat: Path) -> int:
    """Return what a process has used of the processor."""
    return int(stat.read_text().rpartition(") ")[2].split()[11])
