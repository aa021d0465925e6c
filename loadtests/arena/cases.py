"""Lists the cases of the arena: each fault, its container, and when errors are allowed."""

from collections.abc import Iterator

import msgspec

from loadtests.arena.faults import FAULTS
from loadtests.arena.judging import Window
from loadtests.arena.topology import Service

_NEVER = Window()
_BALANCER = "load-balancer"
_SECOND = ["gateway-2", "backend-us"]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Combines one fault with one container."""

    service: str
    fault: str
    window: Window

    @property
    def name(self) -> str:
        """The name by which `--only` selects it."""
        return f"{self.service}:{self.fault}"


_WINDOWS: dict[tuple[str, str], Window] = {
    # One balancer alone: who asks while it is away gets no answer.
    (_BALANCER, "kill"): Window(is_open=True, after_end=3),
    (_BALANCER, "stop"): Window(is_open=True, after_end=3),
    (_BALANCER, "freeze"): Window(is_open=True, after_end=10),
    (_BALANCER, "cut-in"): Window(is_open=True, after_end=10),
    (_BALANCER, "cut-out"): Window(is_open=True, after_end=10),
    (_BALANCER, "address"): Window(is_open=True, after_end=3),
    (_BALANCER, "replace"): Window(is_open=True, after_end=3),
    # What a gateway had taken when it died; a request that was sent is not repeated.
    ("gateway", "kill"): Window(after_begin=3),
    # The balancer gives it requests until it has missed two health checks; they are not repeated.
    ("gateway", "freeze"): Window(after_begin=5),
    ("gateway", "cut-in"): Window(after_begin=5),
    ("gateway", "cut-out"): Window(after_begin=5),
    # No answer without a usage event: `event_log_unavailable`.
    ("gateway", "full"): Window(is_open=True, after_end=10),
}
"""By kind of container and fault; all others are never."""


def cases(services: dict[str, Service]) -> Iterator[Case]:
    """Yield every case, those of a second container of the same kind last."""
    first = [name for name in services if name not in _SECOND and not services[name].ends]
    for names in (first, _SECOND):
        for fault in FAULTS:
            for name in names:
                if fault == "full" and services[name].disk is None:
                    continue
                if fault == "address" and any(services[name].networks.values()):
                    continue  # compose.yaml gives it one
                if fault == "rolling" and name not in ("gateway-1", "backend-eu"):
                    continue
                yield Case(service=name, fault=fault, window=_window(name, fault))


def _window(service: str, fault: str) -> Window:
    kind = service if service == _BALANCER else service.split("-", maxsplit=1)[0]
    return _WINDOWS.get((kind, fault), _NEVER)
