"""Runs the program of a client against a running system, and reads what it found."""

import os
import re
import subprocess
from pathlib import Path

import msgspec

from testing.system import System
from testing.waiting import wait_until
from tests.clients.slow_region import SLOW_MODEL

_FOLDER = Path(__file__).parent
_IN_FLIGHT = re.compile(r"^sluicegate_coalescing_in_flight (\S+)$", re.MULTILINE)


class MatrixLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found: `wrong` is empty where it passed."""

    client: str
    version: str = ""
    row: str
    check: str
    note: str = ""
    wrong: str = ""

    def text(self) -> str:
        """Return the line as it is printed."""
        result = "FAILED" if self.wrong else self.row if self.row == "not answered" else "ok"
        note = f" ({self.note})" if self.note else ""
        return f"{self.client:34} {self.version:9} {self.row:15} {result:12} {self.check}{note}" + (
            f"\n{self.wrong}" if self.wrong else ""
        )


def clients() -> list[str]:
    """Return the names of all clients."""
    return sorted(path.parent.name for path in _FOLDER.glob("*/program.py"))


def target_of(system: System) -> dict[str, str]:
    """Return what programs are told of a running system, with keys made for them."""
    rule = {"name": "burst", "unit": "requests", "capacity": 1, "window": 2.0}
    with system.admin() as admin:

        def made(**fields: object) -> str:
            answer = admin.post("/admin/keys", json={"tenant": "demo", **fields})
            return str(answer.raise_for_status().json()["key"])

        return {
            "url": system.url,
            "grpc": system.grpc_address,
            "key": system.key,
            "limited_key": made(limits=[rule]),
            "narrow_key": made(models=["sentiment"]),
            "ranking_key": made(models=["minilm"]),
            "slow_model": SLOW_MODEL,
        }


def run_client(name: str, python: Path, system: System, target: dict[str, str]) -> list[MatrixLine]:
    """Run the program of a client, and see that the gateway is left with none of its work."""
    done = subprocess.run(
        [python, _FOLDER / name / "program.py", msgspec.json.encode(target).decode()],
        env={**os.environ, "PYTHONPATH": str(_FOLDER.parents[1])},  # noqa: TID251 - another's
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        return [MatrixLine(client=name, row="it ends", check="", wrong=done.stderr[-2000:])]
    lines = msgspec.json.decode(done.stdout.splitlines()[-1], type=list[MatrixLine])
    return [*lines, _released(name, system)]


def _released(name: str, system: System) -> MatrixLine:
    """Return whether the work of callers that did not wait for it ends."""
    wrong = ""
    try:
        wait_until(lambda: _in_flight(system) == 0, within=20.0, what="no work is in flight")
    except AssertionError as error:
        wrong = str(error)
    return MatrixLine(
        client=name, row="deadline", check="the gateway is left with none of its work", wrong=wrong
    )


def _in_flight(system: System) -> float:
    with system.admin() as admin:
        text = admin.get("/metrics").raise_for_status().text
    return sum(map(float, _IN_FLIGHT.findall(text)))
