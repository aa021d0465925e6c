"""Runs k6: writes what its script reads, and reads what it measured."""

import gzip
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from gateway.settings import process_environment
from loadtests.scenarios.analysis import Samples
from loadtests.scenarios.catalogue import Plan
from loadtests.scenarios.workload import Workload

_SCRIPT = Path(__file__).with_name("script.js")
_OWN = Path(__file__).parents[2] / ".venv-load" / "bin" / "k6"
_OPTIONS = ("--no-usage-report", "--no-color", "--log-format=raw", "--address=localhost:0")
_STARTS_AND_ENDS_WITHIN = 120.0
_POLL = 0.25


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go, and in whose names."""

    url: str
    keys: tuple[str, ...]
    """A tenant's each."""
    deadline: float
    """Seconds that a caller waits."""
    is_insecure: bool = False
    """Certificates are not checked."""


class K6Result(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of a run, and what became of the generator."""

    samples: Samples
    dropped: int
    """Requests that were due while the maximum was in flight. They were not sent."""
    users: int
    """The maximum of requests in flight."""


def program() -> str:
    """Return the path of k6, that of `make install-load` first.

    Raises:
        click.ClickException: k6 is missing.
    """
    found = str(_OWN) if _OWN.exists() else shutil.which("k6")
    if found is None:
        raise click.ClickException("k6 is missing: `make install-load` installs it")
    return found


def version() -> str:
    """Return what k6 says of itself."""
    command = [program(), "version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_k6(
    plan: Plan,
    workload: Workload,
    target: Target,
    *,
    folder: Path,
    most_in_flight: int,
    core: int | None = None,
    advance: Callable[[float, int], None] = lambda _at, _pid: None,
) -> K6Result:
    """Send the requests of a plan, on one core if it is given; k6 prints its progress.

    `advance` is called four times a second with the seconds of the load and the process of k6.

    Raises:
        click.ClickException: k6 is missing, ended with an error, or did not end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    answers, summary = folder / "answers.txt", folder / "k6-summary.json"
    executor = plan.k6_executor(deadline=target.deadline, most_in_flight=most_in_flight)
    told = {
        "options": {
            "scenarios": {"load": executor},
            "discardResponseBodies": True,
            "insecureSkipTLSVerify": target.is_insecure,
            "summaryTrendStats": [],
        },
        "url": target.url,
        "deadline": target.deadline,
        # The gateway answers at the deadline, so the timeout is a little later.
        "timeout": f"{target.deadline + 2:g}s",
        "first_number": workload.first_number,
        "templates": [{"path": one.path, "body": one.body} for one in workload.templates],
    }
    (folder / "plan.json").write_bytes(msgspec.json.encode(told))
    (folder / "workload.json").write_bytes(workload.encode())
    command = [program(), "run", *_OPTIONS, f"--console-output={answers}", str(_SCRIPT)]
    if core is not None:
        command = ["taskset", "--cpu-list", str(core), *command]
    environment = dict(process_environment()) | {
        "LOAD_PLAN": str(folder / "plan.json"),
        "LOAD_WORKLOAD": str(folder / "workload.json"),
        "LOAD_SUMMARY": str(summary),
        "LOAD_KEYS": msgspec.json.encode(target.keys).decode(),  # in no file, in no argument
    }
    with subprocess.Popen(command, env=environment) as child:
        try:
            _follow(child, answers, advance, plan.duration + target.deadline)
        finally:
            child.kill()
    with answers.open() as printed:
        samples = Samples.parse(printed)
    with answers.open("rb") as lines, gzip.open(folder / "answers.csv.gz", "wb") as compressed:
        shutil.copyfileobj(lines, compressed)
    answers.unlink()
    (folder / "workload.json").unlink()
    metrics = msgspec.json.decode(summary.read_bytes())
    dropped = metrics.get("dropped_iterations", {}).get("values", {}).get("count", 0)
    users = metrics.get("vus_max", {}).get("values", {}).get("max", 0)
    return K6Result(samples=samples, dropped=int(dropped), users=int(users))


def _follow(
    child: subprocess.Popen[bytes],
    answers: Path,
    advance: Callable[[float, int], None],
    seconds: float,
) -> None:
    until = time.monotonic() + seconds + _STARTS_AND_ENDS_WITHIN
    began = 0.0
    while child.poll() is None:
        if time.monotonic() > until:
            raise click.ClickException(f"k6 did not end; see {answers.parent}")
        began = began or _began(answers)
        if began:
            advance(time.time() - began, child.pid)
        time.sleep(_POLL)
    if child.returncode:
        raise click.ClickException(f"k6 ended with {child.returncode}")


def _began(answers: Path) -> float:
    """Return when the first request was sent, 0 as long as there is none."""
    lines = answers.read_text().splitlines() if answers.exists() else []
    return next((float(x.split(",")[1]) / 1000 for x in lines if x.startswith("began,")), 0.0)
