"""Plays a drill with an operator who is not told the fault, and takes the time until the cause."""

import os
import random
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from loadtests.drills.catalogue import Drill
from loadtests.drills.results import BlindPlay
from loadtests.drills.run import Stage, running_stage
from loadtests.drills.traces import as_text, find_traces
from loadtests.machine import this_machine

_EVERY = 1.0
_MOST_TRACES = 8


def play_blind(
    drills: Sequence[Drill],
    *,
    interval: str,
    quiet: float,
    limit: float,
    traces: Path,
    operator: str,
) -> BlindPlay:
    """Inject one of `drills`, drawn at random, and read the cause from the standard input.

    What a collector would show is in the file `traces`: the newest failed and longest ones.

    Raises:
        TimeoutError: no cause was named within `limit` seconds after the first alert.
    """
    drill = random.SystemRandom().choice(drills)
    with running_stage(interval=interval, quiet=quiet) as stage:
        system = stage.scene.system
        _say(f"console {system.admin_url}/console, key of a viewer {stage.viewer}")
        _say(f"Prometheus {stage.prometheus.url}, traces {traces}")
        injected = time.time()
        with drill.inject(stage.scene):
            alert, fired = _first_alert(stage, limit, traces, injected)
            _say("The clock runs. Type the cause, in one line.")
            said = _answer(stage, limit, traces, injected)
            named = time.time()
    _say(f"after {named - fired:.0f} s; it was: {drill.what}")
    return BlindPlay(
        name=drill.name,
        date=this_machine().date,
        alert=alert,
        alert_after=round(fired - injected, 1),
        named_after=round(named - fired, 1),
        said=said,
        load=os.getloadavg()[1],
        operator=operator,
    )


def _first_alert(stage: Stage, limit: float, traces: Path, since: float) -> tuple[str, float]:
    began = time.monotonic()
    while not (firing := stage.prometheus.firing()):
        if time.monotonic() - began > limit:
            raise TimeoutError("no alert fired")
        _write_traces(stage, traces, since)
        time.sleep(_EVERY)
    fired = time.time()
    for name, labels in firing.items():
        _say(f"ALERT {name} {labels}")
    return min(firing, key=lambda name: (firing[name][0]["severity"] != "page", name)), fired


def _answer(stage: Stage, limit: float, traces: Path, since: float) -> str:
    began, known = time.monotonic(), set(stage.prometheus.firing())
    while time.monotonic() - began < limit:
        if select.select([sys.stdin], [], [], _EVERY)[0]:
            return sys.stdin.readline().strip()
        for name in set(firing := stage.prometheus.firing()) - known:
            known.add(name)
            _say(f"ALERT {name} {firing[name]}")
        _write_traces(stage, traces, since)
    raise TimeoutError("no cause was named")


def _write_traces(stage: Stage, path: Path, since: float) -> None:
    parts = []
    for kind in ("failed", "longest"):
        found = find_traces(stage.sink.spans, kind, since=since)
        parts += [f"# {kind}: {len(found)}", *map(as_text, found[:_MOST_TRACES])]
    path.write_text("\n\n".join(parts) + "\n")


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
