"""Describes a fault: what it does, where it can be done, and when errors are allowed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any  # figures of many kinds

import msgspec

from loadtests.faults.judge import NEVER, Sent, Window


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a load: requests a second, and the shares of special requests."""

    rate: float = 40.0
    repeated: float = 0.25
    """Share of requests whose text was sent before."""
    hasty: float = 0.05
    """Share of requests with a deadline of 300 ms. They may get 503 or 504."""
    insists: bool = False
    """Whether callers repeat a refused request after its `Retry-After`."""
    keyed: bool = False
    """Whether each request has an idempotency key. Callers send a request until it is answered, and
    then once more. Every fourth caller first sends it and hangs up."""
    spike: float = 1.0
    """The factor of the rate during the fault. The additional requests are from limited tenants, if
    there are any."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a finished case to checks.

    A check may add to `figures`. Times are readings of `time.monotonic`.
    """

    topology: Any
    """The running `Topology`; its own checks use more of it than its base class has."""
    part: str
    sent: Sequence[Sent]
    begun: float
    ended: float
    counters: Mapping[str, Mapping[str, float]]
    """The topology's counters when the case began (`start`), when every part worked again
    (`well`), and at the end (`end`)."""
    figures: dict[str, Any]


Act = Callable[[Any, str], AbstractContextManager[None]]
"""Injects a fault into a part of a topology at the entry, and undoes it at the exit.

The exit returns when the part that was away is started again. It raises one of `FAILURES`.
"""
Check = Callable[[Case], Iterable[str]]
"""Judges a case and returns findings."""
Outcome = tuple[dict[str, Any], Sequence[str]]
"""Figures and findings."""


class Fault(msgspec.Struct, frozen=True):
    """A named fault.

    `act` injects it into one of `parts`; without `act`, the load is the fault. `play` is a fault
    with a load and a judge of its own, which needs no topology.
    """

    name: str
    what: str
    undo: str
    act: Act | None = None
    parts: Iterable[str] | Callable[[], Iterable[str]] = ("",)
    """A part's name begins with its kind: `backend eu-0`, `worker`, `gateway-1`."""
    topology: str = "processes"
    play: Callable[[], Outcome] | None = None
    hold: float = 15.0
    """Seconds that the fault lasts."""
    until: Callable[[Any], bool] | None = None
    """Ends the fault early once this returns true for the topology."""
    windows: Mapping[str, Window] = {}
    """When errors are allowed, by kind of part."""
    load: LoadSpec = LoadSpec()
    setup: object = None
    """The setup of the topology. Faults with equal setups share a running topology."""
    checks: tuple[Check, ...] = ()
    may_lose: float = 0.0
    """Seconds before the fault whose answers the ledger may lack, as after a power cut."""

    def window(self, part: str) -> Window:
        """Return when errors are allowed while it is done to a part."""
        kind = part.split(" ", maxsplit=1)[0].split("-", maxsplit=1)[0]
        return self.windows.get(kind, NEVER)
