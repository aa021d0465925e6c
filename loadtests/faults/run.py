"""Runs cases one after another: starts the load, injects the fault, and judges the answers."""

import signal
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import msgspec

from loadtests.faults import judge
from loadtests.faults.catalogue import Case, Fault, Outcome
from loadtests.faults.judge import SETTLED, Sent
from loadtests.faults.load import Load
from loadtests.faults.topology import FAILURES, Topology

_LEDGER = 60.0
_LONGEST_CASE = 1200


class Job(msgspec.Struct, frozen=True):
    """A fault to inject into a part."""

    fault: Fault
    part: str

    @property
    def name(self) -> str:
        """Topology, fault and part: `processes kill worker`."""
        return " ".join(filter(None, (self.fault.topology, self.fault.name, self.part)))


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The lengths of the periods of a case, in seconds.

    The load runs for `quiet` before the fault, and for `after` once all parts work again. The fault
    lasts `hold` or, if `hold` is 0, the length that the fault itself defines. All parts must work
    again within `settled`.
    """

    quiet: float = 5.0
    hold: float = 0.0
    settled: float = SETTLED
    after: float = 5.0
    again: float = 3.0
    """Seconds from when the ledger has every answer until the judge reads the ledger again."""


def run_jobs(
    jobs: Sequence[Job], make: Callable[[str, Path, object], Topology], pace: Pace
) -> Iterator[tuple[Job, Outcome]]:
    """Run the jobs one after another, and yield each with its outcome.

    `make` takes a topology's name, an empty folder and a fault's setup, and builds the topology.
    Consecutive jobs share a running topology if their setups are equal. After a finding, the next
    job gets a new topology.
    """
    left = deque(jobs)
    while left:
        fault = left[0].fault
        if fault.play is not None:
            yield left.popleft(), _outcome(fault.play)
            continue
        with (
            tempfile.TemporaryDirectory(prefix="faults-") as folder,
            make(fault.topology, Path(folder), fault.setup) as topology,
        ):
            findings: Sequence[str] = ()
            while left and not findings and _share_topology(fault, left[0].fault):
                job = left.popleft()
                figures, findings = _outcome(partial(run_case, topology, job, pace))
                yield job, (figures, findings)


def _share_topology(one: Fault, other: Fault) -> bool:
    return (one.topology, one.setup) == (other.topology, other.setup) and other.play is None


def _outcome(run: Callable[[], Outcome]) -> Outcome:
    former = signal.signal(signal.SIGALRM, _ring)
    signal.alarm(_LONGEST_CASE)
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - the next cases run nevertheless
        traceback.print_exc()
        return {}, [f"the case broke off: {type(error).__name__}: {error}"]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


def _ring(*_: object) -> None:
    raise TimeoutError(f"it did not end within {_LONGEST_CASE} s")


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
            with fault.act(topology, job.part) if fault.act else nullcontext():
                end = time.monotonic() + (pace.hold or fault.hold)
                while time.monotonic() < end and not (fault.until and fault.until(topology)):
                    time.sleep(0.2)
        except FAILURES as error:
            problems.append(f"{type(error).__name__}: {error}")
        ended = time.monotonic()
        load.rate = spec.rate
        while (unwell := topology.unwell()) and time.monotonic() - ended < pace.settled:
            time.sleep(0.25)
        well_after = round(time.monotonic() - ended, 1)
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
        figures={"well_after": well_after},
    )
    problems += judge.recovery(unwell, waited=pace.settled)
    return case.figures, [*problems, *_judged(fault, case, since=started, again=pace.again)]


def _judged(fault: Fault, case: Case, *, since: float, again: float) -> Iterator[str]:
    """Yield the broken invariants, and the findings of the fault's own checks."""
    sent, begun, ended = case.sent, case.begun, case.ended
    window = fault.window(case.part)

    def may_be_lost(each: Sent) -> bool:
        return fault.may_lose > 0 and begun - fault.may_lose <= each.came <= ended

    sure = [each for each in sent if not may_be_lost(each)]
    deadline = time.monotonic() + _LEDGER
    while judge.unbilled(sure, case.topology.billed(since)) and time.monotonic() < deadline:
        time.sleep(0.5)
    # A second charge for the same answer may come later than the first.
    time.sleep(again)
    ledger = case.topology.billed(since)
    known = {row.id for row in ledger}
    case.figures.update(judge.figures(sent, window, begun=begun, ended=ended))
    if not sent:
        yield "no request was sent"
    yield from judge.wrong_answers(sent)
    yield from judge.errors_outside(sent, window, begun=begun, ended=ended)
    # A request without an answer may have been served and billed before the fault.
    lost = {s.id for s in sent if s.id and s.id not in known and may_be_lost(s)}
    yield from judge.billing([s for s in sent if s.id not in lost], ledger)
    for check in fault.checks:
        yield from check(case)
