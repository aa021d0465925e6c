"""Runs the whole product in one simulated process per seed, with faults, and judges every run."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click
import msgspec

from loadtests.branch_coverage import Coverage
from loadtests.machine import this_machine
from loadtests.simulated_pieces import (
    RECORD,
    Piece,
    check_committed,
    gaps,
    read_pieces,
    record,
    report,
    simulated_code,
)
from testing.simulation import install

if TYPE_CHECKING:
    from testing.simulation.world.run import Outcome
    from testing.simulation.world.scenario import Scenario
    from testing.simulation.world.seeds import Runner

_PIECE = 400
_MOST_RUNS = 20
"""Runs without a safeguard until it counts as not noticed."""


def _files_to_keep(_: click.Context, __: click.Parameter, value: bool) -> list[Path]:  # noqa: FBT001
    """Return the file in the repository into which results are added, none by default."""
    if value:
        check_committed()
    return [RECORD] if value else []


@click.command("simulate-faults")
@click.option("--first", default=0, help="The first seed.")
@click.option("--seeds", default=1000, help="How many seeds to run. Pieces that are done are kept.")
@click.option("--processes", default=2, help="How many seeds run at a time.")
@click.option("--shrink", is_flag=True, help="Make the scenario of the first seed small.")
@click.option("--mutants", is_flag=True, help="Remove one safeguard at a time; find the seed.")
@click.option("--mutant", default="", help="The only safeguard to remove.")
@click.option("--coverage", is_flag=True, help="Count lines and branches that the seeds reach.")
@click.option("--out", default=Path("build/simulation"), type=Path, help="The folder of results.")
@click.option(
    "--keep",
    "kept",
    is_flag=True,
    callback=_files_to_keep,
    help="Go on from the repository's results; add to them.",
)
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
    kept: Sequence[Path],
    verbose: bool,
) -> None:
    """Simulate the whole product under many seeds, with faults; judge answers and bills."""
    if "PYTHONHASHSEED" not in os.environ:
        # The order of a set of strings may be a part of a run, though none is known.
        os.execve(sys.executable, [*sys.orig_argv], os.environ | {"PYTHONHASHSEED": "0"})  # noqa: S606
    code = simulated_code()
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
            done = [_run_covered(runner, counted, range(first, first + seeds), out)]
        else:
            files = [*kept, out / "pieces.jsonl"]
            done = _run_pieces(runner, range(first, first + seeds), files, code, verbose=verbose)
            for file in kept:
                record(done, file)
    print(*report(done), sep="\n")
    if any(piece.failed for piece in done):
        raise SystemExit(1)


def _run_covered(runner: "Runner", counted: Coverage, seeds: range, out: Path) -> Piece:
    """Run seeds, and print the lines and branches that they reach."""
    with TemporaryDirectory() as kept:
        folder = Path(kept)
        runner.finish = partial(counted.save, folder)
        piece = _run_piece(runner, seeds, out)
        print(*counted.report(folder), sep="\n")
    return piece


def _run_pieces(
    runner: "Runner", seeds: range, files: Sequence[Path], code: str, *, verbose: bool
) -> list[Piece]:
    """Run those of the seeds that have no result in `files`. Return all results of this code.

    New results are added to the last file.

    Raises:
        ClickException: the code was changed meanwhile.
    """
    results = files[-1]
    for gap in list(gaps(seeds, read_pieces(*files, code=code))):
        for start in gap[::_PIECE]:
            wanted = range(start, min(start + _PIECE, gap.stop))
            piece = _run_piece(runner, wanted, results.parent, verbose=verbose)
            if simulated_code() != code:
                raise click.ClickException("the simulated code was changed: run it again")
            with results.open("ab") as file:
                file.write(msgspec.json.encode(msgspec.structs.replace(piece, code=code)) + b"\n")
    return read_pieces(*files, code=code)


def _run_piece(runner: "Runner", seeds: range, out: Path, *, verbose: bool = False) -> Piece:
    from testing.simulation.world.seeds import make_scenario  # noqa: PLC0415

    began, failed, virtual, used = time.monotonic(), {}, 0.0, 0.0
    statuses, faults, operations = Counter[str](), Counter[str](), Counter[str]()
    scenarios = {seed: make_scenario(seed) for seed in seeds}
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
        machine=this_machine(),
        first=seeds[0],
        last=seeds[-1],
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
