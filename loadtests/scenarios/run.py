"""Runs a scenario: the capacity first where it is wanted, then the load, then the report."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from loadtests.machine import this_machine
from loadtests.scenarios import k6
from loadtests.scenarios.analysis import Run, figures, verdicts
from loadtests.scenarios.capacity import Capacity, find_capacity
from loadtests.scenarios.catalogue import SCENARIOS
from loadtests.scenarios.faults import FaultInjector
from loadtests.scenarios.local_system import LocalSystem
from loadtests.scenarios.plan import Plan
from loadtests.scenarios.processes import UseSampler
from loadtests.scenarios.progress import Progress
from loadtests.scenarios.report import text_table, write_report
from loadtests.scenarios.samples import Samples
from loadtests.scenarios.workload import Mix, Workload, make_workload

_SPARE = 60_000
"""Requests for callers who wait, of whom nobody knows how many they send."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    scenario: str
    rate: float | None
    seconds: float | None
    zipf: float | None
    price: float
    most_in_flight: int
    folder: Path


class LoadTest:
    """A scenario against a target, which may be a local system."""

    def __init__(
        self,
        options: Options,
        target: k6.Target,
        mix: Mix,
        *,
        local: LocalSystem | None = None,
        show: Callable[[str], None] = click.echo,
    ) -> None:
        self._options = options
        self._target = target
        self._mix = mix
        self._local = local
        self._show = show
        self._salt = int(datetime.now(UTC).timestamp())

    def run(self) -> bool:
        """Run it and write its report; return whether all criteria hold."""
        scenario, options = SCENARIOS[self._options.scenario], self._options
        capacity = None if options.rate else self._find_capacity()
        rate = options.rate or (capacity.rate * scenario.load if capacity else 0.0)
        plan = Plan(phases=scenario.phases(rate, options.seconds or scenario.seconds))
        self._show(f"{options.scenario}: {scenario.question} {rate:.0f}/s to {plan.peak:.0f}/s")
        run = self._measure(plan, capacity)
        phases, judged = list(figures(run)), list(verdicts(run, scenario.criteria))
        path = write_report(run, phases, judged, options.folder)
        self._show(f"\n{text_table(phases, judged)}\n\n{path}")
        return all(verdict.holds for verdict in judged)

    def _measure(self, plan: Plan, capacity: Capacity | None) -> Run:
        options, scenario = self._options, SCENARIOS[self._options.scenario]
        workload = self._workload(plan, scenario.zipf if options.zipf is None else options.zipf)
        sampler, injector = UseSampler(self._processes), None
        watchers: list[k6.Watcher] = [Progress(plan, deadline=self._target.deadline), sampler]
        if scenario.has_faults and self._local is not None:
            injector = FaultInjector(self._local, duration=plan.duration)
            watchers.append(injector)
        result = self._send(options.scenario, plan, workload, watchers)
        return Run(
            scenario=options.scenario,
            question=scenario.question,
            command=shlex.join(["python", "-m", "loadtests.scenarios", *sys.argv[1:]]),
            target="a system on this machine" if self._local else self._target.url,
            generator=k6.version(),
            machine=this_machine(),
            seed=self._mix.seed,
            zipf=scenario.zipf if options.zipf is None else options.zipf,
            mix=tuple(template.name for template in self._mix.templates),
            tenants=self._mix.tenants,
            deadline=self._target.deadline,
            price=options.price,
            plan=plan,
            capacity=capacity,
            result=result,
            ideal=workload.ideal_hits(),
            use=tuple(sampler.samples),
            marks=tuple(injector.marks) if injector else (),
        )

    def _find_capacity(self) -> Capacity:
        def send(name: str, plan: Plan) -> Samples:
            workload = self._workload(plan, 0.0, spare=_SPARE if plan.callers else 0)
            return self._send(name, plan, workload, ()).samples

        return find_capacity(send, self._target.deadline, show=self._show)

    def _workload(self, plan: Plan, zipf: float, *, spare: int = 0) -> Workload:
        """Return requests whose texts no run before had."""
        self._salt += 1
        mix = msgspec.structs.replace(self._mix, zipf=zipf)
        return make_workload(mix, plan, salt=self._salt, spare=spare)

    def _send(
        self, name: str, plan: Plan, workload: Workload, watchers: Sequence[k6.Watcher]
    ) -> k6.K6Result:
        return k6.run_k6(
            plan,
            workload,
            self._target,
            folder=self._options.folder / "k6" / name,
            most_in_flight=self._options.most_in_flight,
            cores=self._local.cores.generator if self._local else (),
            watchers=watchers,
        )

    def _processes(self) -> Mapping[str, Sequence[int]]:
        return self._local.processes() if self._local else {}
