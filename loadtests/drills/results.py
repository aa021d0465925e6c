"""Keeps what drills gave, and how long operators took who did not know the fault."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

_FOLDER = Path(__file__).parents[1] / "results"
DRILLS_FILE = _FOLDER / "drills.json"
PLAYS_FILE = _FOLDER / "drills-blind.jsonl"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A panel, and the largest of what it showed before the fault and at the end."""

    panel: str
    before: str
    after: str


class DrillResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen in a drill; seconds count from the injection."""

    name: str
    fired: dict[str, float]
    expected: tuple[str, ...]
    statuses: dict[int, int]
    seconds: float
    seen: list[Seen]
    traces: dict[str, str]
    """The worst trace of each kind that a step opens, as text."""
    date: str
    commit: str
    load: float
    """Processes that could run, on average of five minutes."""


class BlindPlay(msgspec.Struct, frozen=True, kw_only=True):
    """A drill whose fault the operator was not told; seconds count from the first alert."""

    name: str
    date: str
    alert: str
    alert_after: float
    """Seconds from the fault to the first alert."""
    named_after: float
    said: str
    """The cause that the operator named."""
    load: float
    operator: str = ""
    """What the operator knew."""
    looked_at: str = ""
    is_right: bool | None = None
    """Filled in by whoever compares what was said with the fault."""
    mended: str = ""
    """What was changed since, because of this play."""


def read_results(path: Path = DRILLS_FILE) -> dict[str, DrillResult]:
    """Return the last result of each drill, by its name."""
    if not path.exists():
        return {}
    found = msgspec.json.decode(path.read_bytes(), type=list[DrillResult])
    return {each.name: each for each in found}


def write_results(results: Iterable[DrillResult], path: Path = DRILLS_FILE) -> None:
    """Write the results in place of what the file has."""
    content = msgspec.json.format(msgspec.json.encode(list(results)), indent=1)
    path.write_bytes(content + b"\n")


def read_plays(path: Path = PLAYS_FILE) -> list[BlindPlay]:
    """Return all plays, the oldest first."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=BlindPlay) for line in lines]


def add_play(play: BlindPlay, path: Path = PLAYS_FILE) -> None:
    """Append a play."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(play) + b"\n")
