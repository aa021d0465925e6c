"""Keeps the results of simulated seeds, so that a later command goes on where one stopped.

Results count only for the code and the version of Python that made them. The file `RECORD` is in
the repository, so one machine can go on where another one stopped.
"""

import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from loadtests.machine import Machine

_ROOT: Final = Path(__file__).parents[1]
RECORD: Final = _ROOT / "loadtests" / "results" / "simulated-faults.jsonl"
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
    def seeds(self) -> range:
        """All seeds from `first` to `last`."""
        return range(self.first, self.last + 1)


def simulated_code() -> str:
    """Return a digest of the simulated code, with changes that are not committed.

    It is equal for commits that differ only in documents, for example.
    """
    trees = _git("rev-parse", *(f"HEAD:{folder}" for folder in _SIMULATED))
    changed = _git("diff", "HEAD", "--", *_SIMULATED)
    new = _git("ls-files", "-z", "--others", "--exclude-standard", "--", *_SIMULATED).split("\0")
    python = f"{sys.version_info[:2]}"  # another version takes other steps
    digest = hashlib.sha256((trees + changed + python).encode())
    for file in filter(Path.is_file, (_ROOT / name for name in new)):
        digest.update(bytes(file) + file.read_bytes())
    return digest.hexdigest()[:12]


def check_committed() -> None:
    """Refuse to record results of code that is not in the repository.

    Raises:
        ClickException: not all simulated code is committed.
    """
    if _git("status", "--porcelain", "--", *_SIMULATED):
        raise click.ClickException("with --keep, commit the simulated code first")


def _git(*words: str) -> str:
    command = ["git", *words]
    done = subprocess.run(command, capture_output=True, check=True, text=True, cwd=_ROOT)
    return done.stdout


def read_pieces(*files: Path, code: str) -> list[Piece]:
    """Return the pieces of `code` in `files`, in the order of seeds.

    No seed is in two of them: a piece that overlaps one of an earlier file does not count.
    """
    kept: list[Piece] = []
    for piece in (each for file in files for each in _read(file) if each.code == code):
        if all(other.last < piece.first or piece.last < other.first for other in kept):
            kept.append(piece)
    return sorted(kept, key=lambda each: each.first)


def gaps(seeds: range, done: Sequence[Piece]) -> Iterator[range]:
    """Yield the ranges of `seeds` without a result. `done` is in the order of seeds."""
    start = seeds.start
    for piece in done:
        if piece.first >= seeds.stop:
            break
        if start < piece.first:
            yield range(start, piece.first)
        start = max(start, piece.last + 1)
    if start < seeds.stop:
        yield range(start, seeds.stop)


def _read(file: Path) -> list[Piece]:
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Piece) for line in lines]


def record(pieces: Sequence[Piece], file: Path = RECORD) -> None:
    """Replace the pieces of one code in `file` by `pieces`, which are in the order of seeds."""
    others = [each for each in _read(file) if each.code != pieces[0].code]
    lines = [msgspec.json.encode(each) + b"\n" for each in [*others, *joined(pieces)]]
    file.write_bytes(b"".join(lines))


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Return fewer, longer pieces. Those of different machines, commits or days stay apart."""
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
    seeds = sum(len(each.seeds) for each in pieces)
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
