"""Keeps the results of simulated seeds, so that a later command goes on where one stopped.

Results of other code do not count. Those of `RECORD` are in the repository: so several machines,
one after the other, can run the seeds of one version.
"""

import hashlib
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from loadtests.machine import Machine

RECORD: Final = Path(__file__).parent / "results" / "simulated-faults.jsonl"
_SIMULATED: Final = ("gateway", "backends", "wire", "sluicegate", "testing", "requirements")


class Piece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of the seeds from `first` to `last`. `code` names all that was simulated."""

    code: str = ""
    first: int
    last: int
    failed: dict[int, list[str]] = {}
    """Findings by seed."""
    seconds: float
    virtual_seconds: float
    processor_seconds: float = 0.0
    statuses: dict[str, int]
    faults: dict[str, int]
    operations: dict[str, int] = {}
    machine: Machine | None = None

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return self.last - self.first + 1

    def has(self, seeds: range) -> bool:
        """Return whether a range of seeds is a part of this one."""
        return self.first <= seeds[0] and seeds[-1] <= self.last


def simulated_code() -> str:
    """Return a digest of the simulated code, with changes that are not committed.

    It is equal for commits that differ only in documents, for example.
    """
    trees = _git("rev-parse", *(f"HEAD:{folder}" for folder in _SIMULATED))
    changed = _git("diff", "HEAD", "--", *_SIMULATED)
    return hashlib.sha256((trees + changed).encode()).hexdigest()[:12]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, check=True, text=True)  # noqa: S607
    return done.stdout


def read_pieces(*files: Path, code: str) -> list[Piece]:
    """Return the pieces of `code` in `files`, each seed once, in the order of seeds."""
    found = [piece for file in files for piece in _read(file) if piece.code == code]
    kept: list[Piece] = []
    for piece in sorted(found, key=lambda each: (each.first, -each.last)):
        if not any(each.has(range(piece.first, piece.last + 1)) for each in kept):
            kept.append(piece)
    return kept


def _read(file: Path) -> list[Piece]:
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Piece) for line in lines]


def record(pieces: Sequence[Piece], file: Path = RECORD) -> None:
    """Write pieces of one code into `file`, in place of those of this code that are there."""
    others = [each for each in _read(file) if each.code != pieces[0].code]
    lines = [msgspec.json.encode(each) + b"\n" for each in [*others, *merged(pieces)]]
    file.write_bytes(b"".join(lines))


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces, which are in the order of seeds, with neighbours of one machine as one."""
    found: list[Piece] = []
    for piece in pieces:
        if found and found[-1].last + 1 == piece.first and found[-1].machine == piece.machine:
            found[-1] = _joined(found[-1], piece)
        else:
            found.append(piece)
    return found


def _joined(one: Piece, other: Piece) -> Piece:
    def total(name: str) -> dict[str, int]:
        return dict(Counter(getattr(one, name)) + Counter(getattr(other, name)))

    return msgspec.structs.replace(
        one,
        last=other.last,
        failed=one.failed | other.failed,
        seconds=one.seconds + other.seconds,
        virtual_seconds=one.virtual_seconds + other.virtual_seconds,
        processor_seconds=one.processor_seconds + other.processor_seconds,
        statuses=total("statuses"),
        faults=total("faults"),
        operations=total("operations"),
    )


def report(pieces: Sequence[Piece]) -> list[str]:
    """Return what pieces of one code found, in words."""
    seeds = sum(each.seeds for each in pieces)
    seconds = sum(each.seconds for each in pieces)
    used = sum(each.processor_seconds for each in pieces) / seeds
    failed = sum(len(each.failed) for each in pieces)
    lines = [
        f"{seeds} seeds, {failed} with findings, {seeds / seconds * 3600:.0f} seeds an hour",
        f"{used:.2f} s of processor time each; code {pieces[0].code}",
    ]
    for name in ("statuses", "faults", "operations"):
        counts = Counter[str]()
        for each in pieces:
            counts.update(getattr(each, name))
        lines.append(f"{name}: {dict(counts)}")
    return lines
