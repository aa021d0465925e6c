"""Runs wrk as the load generator: one thread in C, faster than a Python server."""

import resource
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from loadtests.generator import Target

_SCRIPT = """
local bodies = {{BODIES}}
local requests, number = {{}}, 0
function init(args)
  local headers = {{["content-type"] = "application/json"HEADERS}}
  for i, body in ipairs(bodies) do requests[i] = wrk.format("POST", "PATH", headers, body) end
end
function request()
  number = number % #requests + 1
  return requests[number]
end
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\\nRESULT {{"requests":%d,"duration":%d,"refused":%d,"broken":%d,"p50":%d,"p99":%d}}\\n',
    summary.requests, summary.duration, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""


class WrkResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of wrk: answers, unsuccessful ones, and latencies in seconds.

    `processor` is the processor time of wrk itself, in seconds.
    """

    requests: int
    duration: float
    refused: int
    broken: int
    p50: float
    p99: float
    processor: float

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.requests / self.duration


def is_installed() -> bool:
    """Tell whether this machine has wrk."""
    return shutil.which("wrk") is not None


def require() -> None:
    """End the command with a message where wrk is missing."""
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
) -> WrkResult:
    """Send `bodies` over and over from `core`; each connection waits for its answer."""
    headers = "".join(f", [ {_quoted(name)} ] = {_quoted(value)}" for name, value in target.headers)
    script = _SCRIPT.replace("{{", "{").replace("}}", "}")
    script = script.replace("HEADERS", headers).replace("PATH", target.path)
    script = script.replace("BODIES", ", ".join(_quoted(body.decode()) for body in bodies))
    path = folder / "bodies.lua"
    path.write_text(script)
    url = f"http://{target.host}:{target.port}"
    before = _children_seconds()
    options = ["-t1", f"-c{connections}", f"-d{max(1, round(duration))}s", "-s", str(path), url]
    done = subprocess.run(
        ["taskset", "-c", str(core), "wrk", *options],  # noqa: S607 - PATH says where
        capture_output=True,
        text=True,
        check=True,
    )
    result = msgspec.json.decode(done.stdout.rpartition("RESULT ")[2], type=dict[str, int])
    return WrkResult(
        requests=result["requests"],
        duration=result["duration"] / 1e6,
        refused=result["refused"],
        broken=result["broken"],
        p50=result["p50"] / 1e6,
        p99=result["p99"] / 1e6,
        processor=_children_seconds() - before,
    )


def _children_seconds() -> float:
    """Return the processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _quoted(text: str) -> str:
    """Return `text` as a Lua string."""
    return "[==[" + text + "]==]"
