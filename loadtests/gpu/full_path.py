"""Measures the full path: load processes, gateway workers, backends, device."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from backends.protocol import ServingState
from gateway.settings import Settings, environment, process_environment
from gateway.supervisor.bootstrap import bootstrap
from loadtests.gpu.client import LoadResult, LoadSpec
from loadtests.gpu.device import UtilizationSampler
from loadtests.gpu.engine import backend_settings
from loadtests.gpu.imported import chosen_form, import_classifier
from loadtests.gpu.plan import (
    Candidate,
    Journal,
    Measurement,
    Options,
    SectionResult,
    best_candidate,
)
from loadtests.harness.loopback import get, is_answered
from loadtests.harness.ports import free_port
from loadtests.harness.valkey import Valkey
from loadtests.harness.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_KEY = "sk-bench-key-0123456789abcdef"
_START = 60.0
_ITEMS = (1, 16)


def http(options: Options) -> SectionResult:
    """Send single texts, then several in a request, through the gateway."""
    candidate = best_candidate(options)
    models = import_classifier(options, candidate)
    journal = Journal(options, "http")
    with contextlib.ExitStack() as stack:
        backends = [
            stack.enter_context(_backend(options, candidate, models, number))
            for number in range(options.backends)
        ]
        port = stack.enter_context(_gateway(options, backends))
        _load(options, port, items=1, seed=100, seconds=1.0)  # warm
        for place, items in enumerate(_ITEMS):
            with UtilizationSampler(options.device) as busy:
                answers = _load(
                    options, port, items=items, seed=200 + 100 * place, seconds=options.seconds
                )
            line = _line(options, answers, items, busy.share, _states(backends))
            note = f"{line.note}; {options.served} imported: {chosen_form(models)}"
            journal.end(msgspec.structs.replace(line, note=note))
    return SectionResult(section="http", status="done", lines=journal.lines, best=candidate.name)


@contextlib.contextmanager
def _backend(options: Options, candidate: Candidate, models: Path, number: int) -> Iterator[int]:
    port = free_port()
    settings = backend_settings(options, candidate)
    environment = {
        f"SLUICEGATE_BACKEND_{name.upper()}": str(value)
        for name, value in msgspec.structs.asdict(settings).items()
        if value is not None
        and name not in {"models", "port", "token", "traces", "drain"}
        and not isinstance(value, bool)
    }
    command = [*(sys.executable, "-m", "backends", "serve", "--models", str(models))]
    command += [*("--port", str(port), "--id", f"gpu-{number}", "--region", "gpu")]
    with _process(options, f"backend-{number}", command, environment) as child:
        wait_until(
            lambda: _ready(child, f"http://127.0.0.1:{port}"), within=_START, what="a backend"
        )
        yield port


@contextlib.contextmanager
def _gateway(options: Options, backends: list[int]) -> Iterator[int]:
    config = options.work / "config"
    config.mkdir(exist_ok=True)
    entries = ", ".join(
        f'{{id: gpu-{number}, url: "http://127.0.0.1:{port}"}}'
        for number, port in enumerate(backends)
    )
    (config / "gateway.yaml").write_text(
        f"regions:\n  - name: gpu\n    pools:\n      - backends: [{entries}]\n"
    )
    with Valkey() as cache, Valkey("--appendonly", "yes") as state:
        settings = Settings(
            data_dir=(options.work / f"data-{time.monotonic_ns()}").absolute(),
            config=config.absolute(),
            cache_url=cache.url,
            state_url=state.url,
            port=free_port(),
            admin_port=free_port(),
            admin_key="admin-bench-key-0123456789",
            secret="0" * 64,
        )
        settings.data_dir.mkdir(parents=True)
        bootstrap(settings, _KEY)
        workers = 1 if options.tiny else options.workers
        command = [sys.executable, "-m", "gateway", "gateway", "--workers", str(workers)]
        with _process(options, "gateway", command, environment(settings)) as child:
            url = f"http://127.0.0.1:{settings.port}"
            wait_until(lambda: _ready(child, url), within=_START, what="the gateway")
            yield settings.port


def _load(
    options: Options, port: int, *, items: int, seed: int, seconds: float
) -> list[LoadResult]:
    """Run the load processes side by side and return what each saw."""
    count = 1 if options.tiny else options.clients
    connections = 8 if options.tiny else max(1, options.connections // count)
    command = [sys.executable, "-m", "loadtests.gpu.client"]
    children = []
    for number in range(count):
        orders = LoadSpec(
            port=port,
            key=_KEY,
            connections=max(1, connections // items),
            seconds=seconds,
            items=items,
            seed=seed + number,
            length=options.length,
            tiny=options.tiny,
        )
        child = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        children.append((child, msgspec.json.encode(orders)))
    for child, orders_text in children:
        if child.stdin is not None:
            child.stdin.write(orders_text)
            child.stdin.close()
    answers = []
    for child, _ in children:
        with child:
            text = child.stdout.read() if child.stdout is not None else b""
        answers.append(msgspec.json.decode(text, type=LoadResult))
    return answers


def _line(
    options: Options,
    answers: list[LoadResult],
    items: int,
    busy: float | None,
    states: list[ServingState],
) -> Measurement:
    right = sum(answer.statuses.get(200, 0) for answer in answers)
    others = sum(answer.requests for answer in answers) - right
    rate = sum(a.statuses.get(200, 0) / a.duration for a in answers)
    latencies = sorted(value for answer in answers for value in answer.latencies) or [0.0]
    waste = max((state.report.padding_waste_ratio for state in states), default=0.0)
    return Measurement(
        what=f"whole path over HTTP, {items} text{'s' if items > 1 else ''} a request",
        rate=rate * items,
        tokens_per_second=rate * items * options.length,
        busy=busy,
        waste=round(waste, 3),
        p50=latencies[len(latencies) // 2],
        p99=latencies[len(latencies) * 99 // 100],
        passed=others == 0 and right > 0,
        note=f"{rate * 60:,.0f} requests a minute, {others} not answered with 200",
    )


def _states(backends: list[int]) -> list[ServingState]:
    states = []
    for port in backends:
        answer = get(f"http://127.0.0.1:{port}/v1/state", timeout=10)
        states.append(msgspec.msgpack.decode(answer.content, type=ServingState))
    return states


@contextlib.contextmanager
def _process(
    options: Options, name: str, command: list[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process whose output is kept; end it, and wait until it has ended."""
    inherited = dict(process_environment()) | environment
    with (options.output / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(
            command, cwd=_ROOT, env=inherited, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()


def _ready(child: subprocess.Popen[bytes], url: str) -> bool:
    if child.poll() is not None:
        raise RuntimeError(f"it ended with {child.returncode}; see its log in the output folder")
    return is_answered(f"{url}/health/ready", timeout=1)
