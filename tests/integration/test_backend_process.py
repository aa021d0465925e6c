"""The backend as a process: its start, its signals, its one-line errors."""

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluicegate.backends.cli import main
from sluicegate.wire.protocol import (
    ClassifyParameters,
    Done,
    Task,
)
from testing.model_repository import write_head, write_repository
from testing.ports import free_port
from testing.waiting import until, wait_until
from tests.support.backend_process import SERVE, ask, infos, is_ready, request, serving
from tests.support.steady_load import SteadyLoad

pytestmark = pytest.mark.anyio


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models", real=True)


def classify(port: int, texts: list[object]) -> list[Done]:
    found = ask(port, infos(port)["mood"], Task.CLASSIFY, ClassifyParameters(), texts)
    return [outcome for outcome in found if isinstance(outcome, Done)]


def test_it_serves_says_what_runs_and_stops_with_zero(models: Path) -> None:
    port = free_port()
    at_once = {"SLUICEGATE_BACKEND_SHUTDOWN_DELAY": "0"}
    with serving(models, port, "--region", "eu", "--id", "eu-7", environment=at_once) as process:
        ready = json.loads(request(port, "GET", "/health/ready")[1])
        answers = classify(port, ["good film", "bad card", "the paris text"])
        process.send_signal(signal.SIGTERM)
        log, _ = process.communicate(timeout=60.0)

    assert process.returncode == 0
    assert (ready["provider"], ready["missing"]) == ("CPUExecutionProvider", [])
    assert (ready["backend_id"], ready["region"]) == ("eu-7", "eu")
    assert len(answers) == 3
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["message"] for line in lines] == ["backend started", "backend stopped"]
    assert "film" not in log


async def test_when_stopped_it_says_so_first_and_answers_all_that_it_accepts(models: Path) -> None:
    port = free_port()
    delay = {"SLUICEGATE_BACKEND_SHUTDOWN_DELAY": "2"}
    with serving(models, port, environment=delay) as process:
        async with SteadyLoad(port, b"GET /health/live HTTP/1.1\r\nhost: b\r\n\r\n") as sent:
            await until(lambda: sent.answered > 60, within=60)
            process.send_signal(signal.SIGTERM)
            status, text = 200, b""
            while status == 200:
                status, text = await asyncio.to_thread(request, port, "GET", "/health/ready")
            answers = await asyncio.to_thread(classify, port, ["good film"])
            await until(lambda: sent.refused > 30, within=60, what="the end of accepting")
        assert await asyncio.to_thread(process.wait, 60.0) == 0

    assert (status, json.loads(text)["missing"]) == (503, ["draining: the backend is stopping"])
    assert len(answers) == 1
    assert (set(sent.statuses), sent.broken) == ({200}, [])


def test_a_second_signal_ends_it_at_once(models: Path) -> None:
    port = free_port()
    delay = {"SLUICEGATE_BACKEND_SHUTDOWN_DELAY": "100"}
    with serving(models, port, environment=delay) as process:
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_ready(port), within=60.0)
        process.send_signal(signal.SIGTERM)

        assert process.wait(timeout=60.0) == 0


def test_a_busy_port_is_one_line_and_exit_code_two(models: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = subprocess.run(
            [*SERVE, "--models", str(models), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=120.0,
            check=False,
        )

    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert f"127.0.0.1:{port}" in result.stderr
    assert "choose another port" in result.stderr


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        (("--models", "/nowhere"), {}, "`/nowhere` does not exist"),
        ((), {"SLUICEGATE_BACKEND_PORT": "x"}, "`SLUICEGATE_BACKEND_PORT`"),
        (("--host", "192.0.2.1"), {}, "cannot listen on 192.0.2.1"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(
    tmp_path: Path, options: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    base = {"SLUICEGATE_BACKEND_MODELS": str(tmp_path), "SLUICEGATE_BACKEND_PORT": "0"}
    result = subprocess.run(
        [*SERVE, *options],
        capture_output=True,
        text=True,
        timeout=120.0,
        check=False,
        env=base | environment,
    )

    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr


def test_it_ends_with_its_parent(models: Path) -> None:
    port = free_port()
    arguments = [*SERVE[1:], "--models", str(models), "--port", str(port), "--exit-with-parent"]
    # A parent that does nothing but start the backend and wait to be killed.
    source = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, *sys.argv[1:]]); "
        "print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            wait_until(lambda: is_ready(port), within=60)
        finally:
            parent.kill()

    wait_until(lambda: not is_running(child), within=60, what="the backend outlived its parent")


def is_running(pid: int) -> bool:
    """Whether a process runs; one nobody has waited for yet does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def test_models_are_listed_and_checked(models: Path) -> None:
    listed = run_models("list", "--models", str(models), "--json")
    good = run_models("check", "--models", str(models))
    (models / "tiny" / "1" / "model.onnx").write_bytes(b"broken")
    broken = run_models("check", "--models", str(models))

    names = {model["name"] for model in json.loads(listed.stdout)["models"]}
    assert names == {"tiny", "mood", "intents", "names", "topics", "reviewer"}
    assert good.exit_code == 0, good.stderr
    assert broken.exit_code == 1
    assert "model.onnx: ONNX Runtime cannot load" in broken.stderr


@pytest.mark.parametrize(
    ("plan", "shown"),
    [
        (None, "(revision 10; not 1, 2)"),
        ({"revisions": {"1": 9, "2": 1}}, "(revision 1 and 2; not 10)"),
        (
            {"revisions": {"10": 1}, "preload": ["2"], "shadow": {"revision": "1"}},
            "(revision 10; also 2; shadow 1)",
        ),
    ],
)
@pytest.mark.parametrize("command", ["list", "check"])
def test_revisions_are_named_by_use(
    models: Path, command: str, plan: dict[str, object] | None, shown: str
) -> None:
    copy_revision(models, "2")
    copy_revision(models, "10")
    if plan is not None:
        (models / "tiny" / "serving.yaml").write_text(json.dumps(plan))

    assert line_of("tiny", run_models(command, "--models", str(models)).stdout).endswith(shown)


def test_numbers_by_use_are_in_the_json(models: Path) -> None:
    copy_revision(models, "2")
    copy_revision(models, "10")
    (models / "tiny" / "config.pbtxt").write_text(
        "version_policy { specific { versions: [1, 2] } }"
    )

    listed = json.loads(run_models("list", "--models", str(models), "--json").stdout)

    assert listed["numbers"]["tiny"] == {
        "served": ["2"],
        "preloaded": ["1"],
        "shadow": [],
        "all": ["1", "2", "10"],
    }


def test_the_check_names_the_revision_that_replaced_a_broken_one(models: Path) -> None:
    (copy_revision(models, "2") / "model.onnx").write_bytes(b"broken")

    checked = run_models("check", "--models", str(models))

    assert line_of("tiny", checked.stdout).endswith("(revision 1; not 2)")
    assert "revision `1` is served instead" in line_of("tiny", checked.stderr)


@pytest.mark.parametrize("text", ["revisions: [", 'revisions: {"7": 1}'])
@pytest.mark.parametrize(
    ("command", "shown"), [("list", "(revisions: 1, 2)"), ("check", "(revision 2; not 1)")]
)
def test_a_broken_choice_of_revisions_is_not_named(
    models: Path, text: str, command: str, shown: str
) -> None:
    """As a backend does, `check` falls back to the newest revision."""
    copy_revision(models, "2")
    (models / "tiny" / "serving.yaml").write_text(text)

    lines = run_models(command, "--models", str(models)).output.splitlines()

    (line,) = [line for line in lines if line.startswith("tiny ") and line.endswith(")")]
    assert line.endswith(shown)


def copy_revision(models: Path, number: str) -> Path:
    return Path(shutil.copytree(models / "tiny" / "1", models / "tiny" / number))


def line_of(name: str, output: str) -> str:
    (line,) = [line for line in output.splitlines() if line.startswith(f"{name} ")]
    return line


@pytest.mark.parametrize("command", ["list", "check"])
def test_models_over_those_of_a_second_repository_are_looked_into_with_it(
    models: Path, tmp_path: Path, command: str
) -> None:
    """`sluicegate up --demo-models` serves them so; alone they build on nothing."""
    own = tmp_path / "own"
    write_head(own, "my-mood", ["calm", "angry"])
    arguments = [command, "--models", str(own)]

    alone = run_models(*arguments)
    both = run_models(*arguments, "--more-models", str(models))

    assert "`tiny`, which is not in the repository" in alone.stderr
    assert "my-mood" in both.stdout
    assert both.stderr == ""


def test_usage_of_commands_on_models_is_that_of_sluicegate() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "sluicegate.backends", "models", "check", "-h"],
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )

    assert found.stdout.startswith("Usage: sluicegate models check [OPTIONS]")


def run_models(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["models", *arguments])


def test_onnx_runtime_is_told_not_to_phone_home(models: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(
        [sys.executable, "-m", "sluicegate.backends", "models", "check", "--models", str(models)],
        capture_output=True,
        timeout=120.0,
        check=True,
        env={"HOME": str(home), "XDG_CACHE_HOME": str(home)},
    )

    assert list(home.rglob("*")) == []
