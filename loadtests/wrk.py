"""Runs wrk as a closed loop. Its single thread, in C, is faster than any Python server."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from loadtests.generator import OK, Outcome, Target

_SCRIPT = """
local bodies = {BODIES}
local requests, number = {}, 0
function init(args)
  local headers = {["content-type"] = "application/json"HEADERS}
  for i, body in ipairs(bodies) do requests[i] = wrk.format("POST", "PATH", headers, body) end
end
function request()
  number = number % #requests + 1
  return requests[number]
end
function done(summary, latency, requests)
  local errors, latencies = summary.errors, {}
  for i = 1, 1000 do latencies[i] = latency:percentile((i - 1) / 10) end
  io.write(string.format(
    '\\nRESULT {"requests":%d,"duration":%d,"refused":%d,"broken":%d,"latencies":[%s]}\\n',
    summary.requests, summary.duration, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout, table.concat(latencies, ",")))
end
"""


class _Result(msgspec.Struct, frozen=True):
    """The result that the script prints; times are in microseconds."""

    requests: int
    duration: float
    refused: int
    broken: int
    latencies: list[float]


def is_installed() -> bool:
    """Return whether this machine has wrk."""
    return shutil.which("wrk") is not None


def require() -> None:
    """End the command with a message if wrk is missing."""
    if not is_installed():
        raise click.ClickException("`wrk` is needed; `make install-system` installs it")


def send(
    target: Target,
    bodies: Sequence[bytes],
    *,
    connections: int,
    duration: float,
    core: int,
    folder: Path,
) -> Outcome:
    """Send `bodies` repeatedly from `core`; each connection waits for an answer before the next.

    Refused and broken requests have status 0. Instead of all latencies, the result has a thousand
    percentiles.
    """
    headers = "".join(f", [ {_quoted(name)} ] = {_quoted(value)}" for name, value in target.headers)
    script = _SCRIPT.replace("HEADERS", headers).replace("PATH", target.path)
    script = script.replace("BODIES", ", ".join(_quoted(body.decode()) for body in bodies))
    path = folder / "bodies.lua"
    path.write_text(script)
    url = f"http://{target.host}:{target.port}"
    options = ["-t1", f"-c{connections}", f"-d{max(1, round(duration))}s", "-s", str(path), url]
    done = subprocess.run(
        ["taskset", "-c", str(core), "wrk", *options],  # noqa: S607 - `wrk` is on the PATH
        capture_output=True,
        text=True,
        check=True,
    )
    result = msgspec.json.decode(done.stdout.rpartition("RESULT ")[2], type=_Result)
    statuses = {OK: result.requests - result.refused, 0: result.refused + result.broken}
    return Outcome(
        duration=result.duration / 1e6,
        statuses=statuses,
        latencies=[latency / 1e6 for latency in result.latencies],
    )


def _quoted(text: str) -> str:
    """Return `text` as a Lua string."""
    return "[==[" + text + "]==]"
