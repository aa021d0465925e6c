"""Runs the whole product in one simulated process per seed, with faults, and judges every run."""

import hashlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click
import msgspec

from loadtests.branch_coverage import Coverage
from testing.simulation import install

if TYPE_CHECKING:
    from testing.simulation.world.run import Outcome
    from testing.simulation.world.scenario import Scenario
    from testing.simulation.world.seeds import Runner

_PIECE = 100
_SIMULATED = ("gateway", "backends", "wire", "sluicegate", "testing", "requirements")
_MOST_RUNS = 20
"""Runs without a safeguard until it counts as not noticed."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the seeds from `first` to `last`. `code` names all that was simulated."""

    code: str = ""
    first: int
    last: int
    failed: dict[int, list[str]]
    seconds: float
    virtual_seconds: float
    statuses: dict[str, int]
    faults: dict[str, int]
    operations: dict[str, int] = {}
    processor_seconds: float = 0.0


@click.command("simulate-faults")
@click.option("--first", default=0, help="The first seed.")
@click.option("--seeds", default=1000, help="How many seeds to run. Pieces that are done are kept.")
@click.option("--processes", default=2, help="How many seeds run at a time.")
@click.option("--shrink", is_flag=True, help="Make the scenario of the first seed small.")
@click.option("--mutants", is_flag=True, help="Remove one safeguard at a time; find the seed.")
@click.option("--mutant", default="", help="The only safeguard to remove.")
@click.option("--coverage", is_flag=True, help="Count lines and branches that the seeds reach.")
@click.option("--out", default=Path("build/simulation"), type=Path, help="The folder of results.")
@click.option("--verbose", is_flag=True, help="Print the story of each seed.")
def measure(
    first: int,
    seeds: int,
    processes: int,
    mutant: str,
    out: Path,
    *,
    shrink: bool,
    mutants: bool,
    coverage: bool,
    verbose: bool,
) -> None:
    """Simulate the whole product under many seeds, with faults; judge answers and bills."""
    if "PYTHONHASHSEED" not in os.environ:
        # The order of a set of strings may be a part of a run, though none is known.
        os.execve(sys.executable, [*sys.orig_argv], os.environ | {"PYTHONHASHSEED": "0"})  # noqa: S606
    install()
    counted = Coverage(Path(__file__).parents[1], ("gateway", "backends"))
    if coverage:
        counted.start()  # also what happens at import
    from testing.simulation.world.seeds import Runner  # noqa: PLC0415 - after `install`

    out.mkdir(parents=True, exist_ok=True)
    if mutants or mutant:
        with Runner(processes) as runner:
            _find_mutants(runner, mutant, range(first, first + min(seeds, _MOST_RUNS)))
        return
    with Runner(1 if coverage else processes) as runner:
        if shrink:
            _shrink(runner, first, out)
            return
        if coverage:
            with TemporaryDirectory() as kept:
                folder = Path(kept)
                runner.finish = partial(counted.save, folder)
                piece = _run_piece(runner, first, first + seeds - 1, out, verbose=verbose)
                print(*counted.report(folder), sep="\n")
            _report([piece])
            return
        done = _pieces(out)
        for start in range(first, first + seeds, _PIECE):
            last = min(start + _PIECE, first + seeds) - 1
            if (start, last) not in done:
                piece = _run_piece(runner, start, last, out, verbose=verbose)
                done[start, last] = piece
                with (out / "pieces.jsonl").open("ab") as file:
                    file.write(msgspec.json.encode(piece) + b"\n")
    _report(list(done.values()))


def _run_piece(runner: "Runner", first: int, last: int, out: Path, *, verbose: bool) -> Piece:
    from testing.simulation.world.seeds import make_scenario  # noqa: PLC0415

    began, failed, virtual, used = time.monotonic(), {}, 0.0, 0.0
    statuses, faults, operations = Counter[str](), Counter[str](), Counter[str]()
    scenarios = {seed: make_scenario(seed) for seed in range(first, last + 1)}
    for outcome in runner.run(scenarios.values()):
        virtual += outcome.virtual_seconds
        used += outcome.seconds
        statuses.update(outcome.statuses)
        faults.update(fault.kind for fault in scenarios[outcome.seed].faults)
        operations.update(each.kind for each in scenarios[outcome.seed].operations)
        if verbose:
            _tell(outcome)
        if outcome.findings:
            failed[outcome.seed] = outcome.findings
            print(outcome.seed, "; ".join(outcome.findings)[:300], flush=True)
            (out / f"{outcome.seed}.txt").write_text("\n".join(outcome.story))
    return Piece(
        code=_code(),
        first=first,
        last=last,
        failed=failed,
        seconds=time.monotonic() - began,
        virtual_seconds=virtual,
        statuses=statuses,
        faults=faults,
        operations=operations,
        processor_seconds=used,
    )


def _find_mutants(runner: "Runner", only: str, seeds: range) -> None:
    """Print for each safeguard how many seeds it took to notice that it is missing."""
    from testing.simulation.world.mutants import MUTANTS  # noqa: PLC0415 - after `install`

    missed = 0
    for name, mutant in MUTANTS.items():
        if only not in name:
            continue
        noticed = _first_notice(runner, [mutant.scenario(seed) for seed in seeds], mutant.remove)
        if noticed is None:
            missed += 1
            print(f"{name}: not noticed by {len(seeds)} runs", flush=True)
        else:
            count, outcome = noticed
            finding = outcome.findings[0].strip().splitlines()[-1][:100]
            print(f"{name}: {count} runs, seed {outcome.seed}: {finding}", flush=True)
    if missed:
        raise SystemExit(1)


def _first_notice(
    runner: "Runner", scenarios: list["Scenario"], remove: Callable[[], None]
) -> "tuple[int, Outcome] | None":
    """Return the first run that fails only without the safeguard, and how many runs it took."""
    keep = runner.change
    for count, scenario in enumerate(scenarios, 1):
        runner.change = remove
        (outcome,) = runner.run([scenario])
        runner.change = keep
        if outcome.findings:
            (fair,) = runner.run([scenario])
            if not fair.findings:
                return count, outcome
            print(f"seed {scenario.seed} with the safeguard: {fair.findings[0][:200]}", flush=True)
    return None


def _tell(outcome: "Outcome") -> None:
    print("\n".join(outcome.story))
    print(outcome.seed, outcome.digest, f"{outcome.seconds:.2f} s", outcome.findings)


def _shrink(runner: "Runner", seed: int, out: Path) -> None:
    from testing.simulation.world.seeds import make_scenario  # noqa: PLC0415
    from testing.simulation.world.shrink import shrink  # noqa: PLC0415

    def run(scenario: "Scenario") -> "Outcome":
        (outcome,) = runner.run([scenario])
        print(
            len(scenario.faults),
            len(scenario.operations),
            len(scenario.requests),
            outcome.findings[:1],
            flush=True,
        )
        return outcome

    scenario, outcome = shrink(make_scenario(seed), run)
    (out / f"{seed}.json").write_bytes(msgspec.json.format(msgspec.json.encode(scenario)))
    _tell(outcome)


def _pieces(out: Path) -> dict[tuple[int, int], Piece]:
    """Return the pieces of this code that are done."""
    code, file = _code(), out / "pieces.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    found = [msgspec.json.decode(line, type=Piece) for line in lines]
    return {(each.first, each.last): each for each in found if each.code == code}


def _code() -> str:
    """Return a digest of the simulated code, with changes that are not committed.

    Pieces also count for a later commit that changes only documents, for example.
    """
    trees = _git("rev-parse", *(f"HEAD:{folder}" for folder in _SIMULATED))
    changed = _git("diff", "HEAD", "--", *_SIMULATED)
    return hashlib.sha256((trees + changed).encode()).hexdigest()[:12]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, check=True, text=True)  # noqa: S607
    return done.stdout


def _report(pieces: list[Piece]) -> None:
    seeds = sum(each.last - each.first + 1 for each in pieces)
    seconds = sum(each.seconds for each in pieces)
    used = sum(each.processor_seconds for each in pieces) / seeds
    statuses, faults, operations = Counter[str](), Counter[str](), Counter[str]()
    for each in pieces:
        statuses.update(each.statuses)
        faults.update(each.faults)
        operations.update(each.operations)
    failed = {seed: found for each in pieces for seed, found in each.failed.items()}
    print(f"{seeds} seeds, {len(failed)} with findings, {seeds / seconds * 3600:.0f} seeds an hour")
    print(f"{used:.2f} s of processor time each; code {_code()}")
    print(f"answers by status: {dict(statuses)}")
    print(f"faults: {dict(faults)}")
    print(f"operations: {dict(operations)}")
    if failed:
        raise SystemExit(1)
