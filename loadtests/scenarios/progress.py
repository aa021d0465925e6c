"""Prints what happens while a run goes on, a line every two seconds."""

from collections.abc import Callable, Sequence

import click
from typing_extensions import override

from loadtests.scenarios.k6 import Watcher
from loadtests.scenarios.plan import Plan
from loadtests.scenarios.samples import Samples, percentile

_EVERY = 2.0


class Progress(Watcher):
    """Prints the answers since its last line: how many, which, how fast."""

    def __init__(
        self, plan: Plan, *, deadline: float, show: Callable[[str], None] = click.echo
    ) -> None:
        self._plan = plan
        self._deadline = deadline
        self._show = show
        self._last = 0.0
        self._lines: list[str] = []

    @override
    def advance(self, at: float, lines: Sequence[str], pid: int) -> None:
        self._lines += lines
        if at - self._last < _EVERY:
            return
        samples = Samples.parse(self._lines)
        self._show(self._line(at, samples, at - self._last))
        self._last, self._lines = at, []

    def _line(self, at: float, samples: Samples, seconds: float) -> str:
        good, refused = samples.good(self._deadline), samples.refused
        others = len(samples) - int(good.sum()) - int(refused.sum())
        latencies = samples.latency[samples.status == 200]
        answered = max(1, len(latencies))
        phase = self._plan.phase_at(at).name
        return (
            f"{min(at, self._plan.duration):5.0f} of {self._plan.duration:.0f} s  {phase:<12}"
            f"{len(samples) / seconds:7.0f}/s: in time {good.sum() / seconds:.0f}, "
            f"refused {refused.sum() / seconds:.0f}, other {others / seconds:.0f}; "
            f"p50 {percentile(latencies, 0.5) * 1e3:.0f} ms, "
            f"p99 {percentile(latencies, 0.99) * 1e3:.0f} ms; "
            f"hits {samples.hits.sum() / answered:.0%}"
        )
