"""Runs k6: writes what its script reads, follows what it prints, and reads what it measured."""

import contextlib
import gzip
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol  # Any: what k6 writes is JSON

import click
import msgspec

from gateway.settings import process_environment
from loadtests.scenarios.plan import Plan, k6_scenario
from loadtests.scenarios.samples import Samples
from loadtests.scenarios.workload import Workload

_SCRIPT = Path(__file__).with_name("script.js")
_OWN = Path(__file__).parents[2] / ".venv-load" / "bin" / "k6"
_OPTIONS = ("--quiet", "--no-usage-report", "--no-color", "--log-format=raw")
_STARTS_WITHIN, _ENDS_WITHIN = 60.0, 60.0
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
    """Requests that were due while as many as may be under way were."""
    users: int
    """Requests that may be under way at a time."""


class Watcher(Protocol):
    """Follows a run: called four times a second from the first request on."""

    def advance(self, at: float, lines: Sequence[str], pid: int) -> None:
        """Take the lines printed since the last call, `at` seconds of the load.

        `pid` is the generator's process.
        """


def program() -> str | None:
    """Return the path of k6, that of `make install-load` first."""
    return str(_OWN) if _OWN.exists() else shutil.which("k6")


def version() -> str:
    """Return what k6 says of itself."""
    command = [_program(), "version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_k6(
    plan: Plan,
    workload: Workload,
    target: Target,
    *,
    folder: Path,
    most_in_flight: int,
    cores: Sequence[int] = (),
    watchers: Sequence[Watcher] = (),
) -> K6Result:
    """Send the requests of a plan, on some cores only if they are named.

    Raises:
        click.ClickException: k6 is missing, or ended with an error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = _Files(folder)
    scenario = k6_scenario(plan, deadline=target.deadline, most_in_flight=most_in_flight)
    files.plan.write_bytes(_encode_plan(scenario, workload, target))
    files.workload.write_bytes(workload.encode())
    command = [_program(), "run", *_OPTIONS, f"--console-output={files.lines}"]
    command += ["--address=localhost:0", str(_SCRIPT)]
    if cores:
        command = ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]
    environment = dict(process_environment()) | {
        "LOAD_PLAN": str(files.plan),
        "LOAD_WORKLOAD": str(files.workload),
        "LOAD_SUMMARY": str(files.summary),
        "LOAD_KEYS": msgspec.json.encode(target.keys).decode(),  # in no file, in no argument
    }
    with files.log.open("wb") as log:
        child = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    with _ending(child):
        _follow(child, files, watchers, plan.duration + target.deadline)
    if child.returncode:
        said = files.log.read_text(errors="replace")[-2000:]
        raise click.ClickException(f"k6 ended with {child.returncode}: {said}")
    return files.result()


class _Files:
    """The files of a run."""

    def __init__(self, folder: Path) -> None:
        self.plan = folder / "plan.json"
        self.workload = folder / "workload.json"
        self.lines = folder / "answers.txt"
        self.summary = folder / "k6-summary.json"
        self.log = folder / "k6.log"

    def result(self) -> K6Result:
        """Return what they say; the largest are compressed, or not kept."""
        with self.lines.open() as lines:
            samples = Samples.parse(lines)
        self.lines.unlink()
        compressed = self.workload.with_name("workload.json.gz")
        compressed.write_bytes(gzip.compress(self.workload.read_bytes()))
        self.workload.unlink()
        metrics = msgspec.json.decode(self.summary.read_bytes())
        dropped = metrics.get("dropped_iterations", {}).get("values", {}).get("count", 0)
        users = metrics.get("vus_max", {}).get("values", {}).get("max", 0)
        return K6Result(samples=samples, dropped=int(dropped), users=int(users))


def _program() -> str:
    found = program()
    if found is None:
        raise click.ClickException("k6 is missing: `make install-load` installs it")
    return found


def _encode_plan(scenario: dict[str, Any], workload: Workload, target: Target) -> bytes:
    options = {
        "scenarios": {"load": scenario},
        "discardResponseBodies": True,
        "insecureSkipTLSVerify": target.is_insecure,
        "summaryTrendStats": [],
    }
    return msgspec.json.encode(
        {
            "options": options,
            "url": target.url,
            "deadline": target.deadline,
            # The gateway answers at the deadline; who hears nothing goes soon after.
            "timeout": f"{target.deadline + 2:g}s",
            "first_number": workload.first_number,
            "templates": [{"path": one.path, "body": one.body} for one in workload.templates],
        }
    )


@contextlib.contextmanager
def _ending(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process if it is still there at the end."""
    try:
        yield
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _follow(
    child: subprocess.Popen[bytes], files: _Files, watchers: Sequence[Watcher], seconds: float
) -> None:
    """Hand the lines on as they are printed, until k6 has ended."""
    until = time.monotonic() + seconds + _STARTS_WITHIN + _ENDS_WITHIN
    began, rest, position = 0.0, "", 0
    while True:
        has_ended = _has_ended(child)
        with contextlib.suppress(FileNotFoundError), files.lines.open() as file:
            file.seek(position)
            text = file.read()
            position = file.tell()
            *lines, rest = (rest + text).split("\n")
            began = began or _began(lines)
            at = datetime.now(UTC).timestamp() - began
            for watcher in watchers if began else ():
                watcher.advance(at, lines, child.pid)
        if has_ended:
            return
        if time.monotonic() > until:
            raise click.ClickException(f"k6 did not end; see {files.log}")


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(_POLL)
    except subprocess.TimeoutExpired:
        return False
    return True


def _began(lines: Sequence[str]) -> float:
    return next((float(x.split(",")[1]) / 1000 for x in lines if x.startswith("began,")), 0.0)
