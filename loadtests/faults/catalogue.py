"""Describes faults: what each does, where it can be injected, and when it may cause errors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any  # figures are values of many types

import msgspec

from loadtests.faults.judge import NEVER, Sent, Window


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a load: its rate in requests a second, and the shares of special requests."""

    rate: float = 40.0
    repeated: float = 0.25
    """Share of requests whose text was sent before."""
    hasty: float = 0.05
    """Share of requests with a deadline of 300 ms. They may get 503 or 504."""
    spike: float = 1.0
    """The rate during the fault, as a multiple of the rate before it. If some tenants are limited,
    the additional requests come from these tenants."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a finished case. Checks read it.

    A check may add to `figures`. Times are readings of `time.monotonic`.
    """

    topology: Any
    """The running `Topology`. Checks of one topology also use attributes that only its subclass
    has."""
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

The exit returns when the part has been started again. It raises one of `FAILURES`.
"""
Check = Callable[[Case], Iterable[str]]
"""Judges a case and returns findings."""
Outcome = tuple[dict[str, Any], Sequence[str]]
"""Figures and findings."""


class Fault(msgspec.Struct, frozen=True):
    """A named fault.

    `act` injects the fault into one of `parts`. Without `act`, the load itself is the fault. A
    fault with `play` needs no topology: the function `play` sends its own load and judges the
    answers.
    """

    name: str
    what: str
    undo: str
    act: Act | None = None
    parts: Iterable[str] | Callable[[], Iterable[str]] = ("",)
    """The parts into which the fault can be injected. A part's name begins with the part's kind:
    `backend eu-0`, `worker`, `gateway-1`."""
    topology: str = "processes"
    play: Callable[[], Outcome] | None = None
    hold: float = 15.0
    """Seconds that the fault lasts."""
    until: Callable[[Any], bool] | None = None
    """Ends the fault early once this function returns true for the topology."""
    windows: Mapping[str, Window] = {}
    """When errors are allowed, by the kind of the part."""
    load: LoadSpec = LoadSpec()
    setup: object = None
    """The setup of the topology. Faults with equal setups share a running topology."""
    checks: tuple[Check, ...] = ()
    may_lose: float = 0.0
    """The ledger may lack answers that callers got up to this many seconds before the fault, as
    after a power cut."""

    def window(self, part: str) -> Window:
        """Return when errors are allowed while the fault is injected into `part`."""
        kind = part.split(" ", maxsplit=1)[0].split("-", maxsplit=1)[0]
        return self.windows.get(kind, NEVER)
