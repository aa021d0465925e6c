"""Runs cases one after another: load, fault, judge, record."""

import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any  # figures of many kinds

import msgspec

from loadtests.faults import judge
from loadtests.faults.catalogue import Case, Fault, Outcome
from loadtests.faults.judge import SETTLED, LedgerRow, Sent
from loadtests.faults.load import Load
from loadtests.faults.report import Record, ResultFile
from loadtests.faults.topology import Topology, TopologyError

_LEDGER = 60.0
LONGEST_CASE = 1200.0
_Make = Callable[[str, Path, object], Topology]


class Job(msgspec.Struct, frozen=True):
    """A fault to inject into a part of a topology. `part` is empty for a `play`."""

    topology: str
    fault: Fault
    part: str
    number: int = 0
    """The number of the run, from 0, if the same job runs repeatedly."""

    @property
    def name(self) -> str:
        """The name of the job in records."""
        count = f"#{self.number + 1}" if self.number else ""
        return " ".join(filter(None, (self.topology, self.fault.name, self.part, count)))


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a case: before the fault, with it (0: its own), to settle at most, and after."""

    quiet: float = 5.0
    hold: float = 0.0
    settled: float = SETTLED
    after: float = 5.0
    again: float = 3.0
    """Seconds from the moment when the ledger has every answer until it is read for judgement."""


def run_jobs(
    jobs: Sequence[Job],
    make: _Make,
    file: ResultFile,
    *,
    commit: str,
    pace: Pace,
    within: float,
    show: Callable[[Record], None],
) -> list[Job]:
    """Run the jobs without a record for this commit; return the jobs that found no time.

    `make` builds a topology by its name in an empty folder, with the setup of the faults.
    No job begins later than `within` seconds after the first.
    """
    known = file.records(commit)
    left = [job for job in jobs if job.name not in known]
    with closing(_running(list(left), make, until=time.monotonic() + within)) as running:
        for job, topology in running:
            record = _recorded(job, topology, commit, pace)
            file.add(record)
            show(record)
            left.remove(job)
    return left


def _running(
    jobs: Sequence[Job], make: _Make, *, until: float
) -> Generator[tuple[Job, Topology | None], None, None]:
    """Yield jobs, each with its running topology if it needs one; jobs in a row share it."""
    for (name, setup, plays), group in groupby(
        jobs, lambda job: (job.topology, job.fault.setup, job.fault.play is not None)
    ):
        if time.monotonic() > until:
            return
        with tempfile.TemporaryDirectory(prefix="faults-") as folder, ExitStack() as stack:
            topology = None if plays else stack.enter_context(make(name, Path(folder), setup))
            for job in group:
                if time.monotonic() > until:
                    return
                if topology is not None:
                    topology.restore()
                yield job, topology


def _recorded(job: Job, topology: Topology | None, commit: str, pace: Pace) -> Record:
    started = time.monotonic()
    figures: dict[str, Any] = {}
    findings: Sequence[str] = ()
    with _alarm(LONGEST_CASE):
        try:
            if topology is not None:
                figures, findings = run_case(topology, job, pace)
            elif job.fault.play is not None:
                figures, findings = job.fault.play()
        except Exception as error:  # noqa: BLE001 - the cases after this one run nevertheless
            traceback.print_exc()
            findings = [f"the case broke off: {type(error).__name__}: {error}"]
    return Record(
        case=job.name,
        commit=commit,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - started, 1),
        figures=figures,
        findings=list(findings),
    )


def run_case(topology: Topology, job: Job, pace: Pace) -> Outcome:
    """Inject the fault into the part under load, and return figures and findings."""
    fault, started, problems = job.fault, time.time(), list[str]()
    counters = {"start": topology.counters()}
    spec = fault.load
    with Load(topology, spec, seed=int(started)) as load:
        time.sleep(pace.quiet)
        begun = time.monotonic()
        load.rate = spec.spike * spec.rate
        try:
            with (fault.act or _inject(fault.name))(topology, job.part):
                _hold(fault, topology, pace.hold or fault.hold)
        except TopologyError as error:
            problems.append(str(error))
        ended = time.monotonic()
        load.rate = spec.rate
        unwell, well_after = _recover(topology, within=pace.settled)
        counters["well"] = topology.counters()
        time.sleep(pace.after)
    counters["end"] = topology.counters()
    case = Case(
        topology=topology,
        part=job.part,
        sent=load.sent,
        begun=begun,
        ended=ended,
        counters=counters,
        figures={"well_after": round(well_after, 1)},
    )
    problems += judge.recovery(unwell, waited=pace.settled)
    return case.figures, [*problems, *_judged(job, case, since=started, again=pace.again)]


def _judged(job: Job, case: Case, *, since: float, again: float) -> Iterator[str]:
    """Yield the broken invariants, and the findings of the fault's own checks."""
    fault, sent, begun, ended = job.fault, case.sent, case.begun, case.ended
    window = fault.window(job.part)

    def may_be_lost(each: Sent) -> bool:
        return fault.may_lose > 0 and begun - fault.may_lose <= each.came <= ended

    sure = [each for each in sent if not may_be_lost(each)]
    ledger = settled_ledger(case.topology, sure, since=since, again=again)
    known = {row.id for row in ledger}
    case.figures.update(judge.figures(sent, window, begun=begun, ended=ended))
    if not sent:
        yield "no request was sent"
    yield from judge.wrong_answers(sent)
    yield from judge.errors_outside(sent, window, begun=begun, ended=ended)
    yield from judge.billing([s for s in sent if s.id in known or not may_be_lost(s)], ledger)
    yield from judge.retries(sent)
    for check in fault.checks:
        yield from check(case)


def _recover(topology: Topology, *, within: float) -> tuple[Sequence[str], float]:
    """Return the parts that still fail after `within` seconds, and the seconds that passed."""
    begun = time.monotonic()
    while (unwell := topology.unwell()) and time.monotonic() - begun < within:
        time.sleep(0.25)
    return unwell, time.monotonic() - begun


def _inject(name: str) -> Callable[[Topology, str], AbstractContextManager[None]]:
    return lambda topology, part: topology.inject(name, part)


def _hold(fault: Fault, topology: Topology, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (fault.until and fault.until(topology)):
        time.sleep(0.2)


def settled_ledger(
    topology: Topology, sent: Sequence[Sent], *, since: float, again: float
) -> Sequence[LedgerRow]:
    """Wait until the ledger has every answer, at most a minute, and return it `again` s later.

    The additional wait finds requests that are billed a second time.
    """
    deadline = time.monotonic() + _LEDGER
    while judge.unbilled(sent, topology.billed(since)) and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(again)
    return topology.billed(since)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after `seconds`."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"it did not end within {seconds:.0f} s")

    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)
