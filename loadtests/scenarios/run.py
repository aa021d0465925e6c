"""Runs a scenario: the capacity first where it is wanted, then the load, then the report."""

import shlex
import sys
import time
from pathlib import Path

import click
import msgspec

from loadtests.machine import this_machine
from loadtests.scenarios import k6
from loadtests.scenarios.analysis import Run, Samples, figures, find_capacity, verdicts
from loadtests.scenarios.catalogue import SCENARIOS, Plan
from loadtests.scenarios.local_system import LocalSystem, Watcher
from loadtests.scenarios.report import page, write_report
from loadtests.scenarios.workload import Mix, Workload, make_workload

_SPARE = 60_000
"""Requests for a closed loop, whose number is not known before."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    scenario: str
    rate: float | None = None
    seconds: float | None = None
    zipf: float | None = None
    price: float = 0.1
    most_in_flight: int = 1000
    folder: Path


class LoadTest:
    """A scenario against a target, which may be a local system."""

    def __init__(
        self, options: Options, target: k6.Target, mix: Mix, *, local: LocalSystem | None = None
    ) -> None:
        self._options = options
        self._target = target
        self._mix = mix
        self._local = local
        self._salt = int(time.time())

    def run(self) -> bool:
        """Run it and write its report; return whether all criteria hold."""
        options, scenario = self._options, SCENARIOS[self._options.scenario]
        zipf = scenario.zipf if options.zipf is None else options.zipf
        capacity = None if options.rate else find_capacity(self._send, self._target.deadline)
        rate = options.rate or (capacity.rate * scenario.load if capacity else 0.0)
        plan = Plan(phases=scenario.phases(rate, options.seconds or scenario.seconds))
        click.echo(f"{options.scenario}: {scenario.question} {rate:.0f}/s")
        workload = self._workload(plan, zipf)
        watcher = Watcher(self._local, faults=scenario.has_faults, duration=plan.duration)
        result = self._run_k6(options.scenario, plan, workload, watcher)
        run = Run(
            scenario=options.scenario,
            command=shlex.join(["python", "-m", "loadtests.scenarios", *sys.argv[1:]]),
            target="a system on this machine" if self._local else self._target.url,
            generator=k6.version(),
            machine=this_machine(),
            seed=self._mix.seed,
            zipf=zipf,
            requests=tuple(template.name for template in self._mix.templates),
            tenants=self._mix.tenants,
            deadline=self._target.deadline,
            price=options.price,
            plan=plan,
            capacity=capacity,
            dropped=result.dropped,
            users=result.users,
            use=tuple(watcher.samples),
            marks=tuple(watcher.marks),
            samples=result.samples,
            ideal=workload.ideal_hits(),
        )
        phases, judged = list(figures(run)), list(verdicts(run))
        path = write_report(run, phases, judged, options.folder)
        click.echo(f"\n{page(run, phases, judged)}\n{path}")
        return all(verdict.holds for verdict in judged)

    def _send(self, name: str, plan: Plan) -> Samples:
        workload = self._workload(plan, 0.0, spare=_SPARE if plan.callers else 0)
        return self._run_k6(name, plan, workload).samples

    def _workload(self, plan: Plan, zipf: float, *, spare: int = 0) -> Workload:
        """Return requests with texts that no earlier run had."""
        self._salt += 1
        mix = msgspec.structs.replace(self._mix, zipf=zipf)
        return make_workload(mix, plan, salt=self._salt, spare=spare)

    def _run_k6(
        self, name: str, plan: Plan, workload: Workload, watcher: Watcher | None = None
    ) -> k6.K6Result:
        return k6.run_k6(
            plan,
            workload,
            self._target,
            folder=self._options.folder / "k6" / name,
            most_in_flight=self._options.most_in_flight,
            core=self._local.generator_core if self._local else None,
            advance=watcher.advance if watcher else lambda _at, _pid: None,
        )
