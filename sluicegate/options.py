"""Defines how calls are made: their time, retries and request headers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

Criticality = Literal["critical", "default", "sheddable"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How calls are made."""

    timeout: float = 30.0
    """Seconds for the whole call, retries included; the gateway is told what is left of them.

    The blocking client bounds each read from the connection by them.
    """
    retries: int = 3
    """How often a call is sent again at most.

    To wait for an attempt that is still being answered counts only where this is 0.
    """
    idempotency: bool = True
    """Whether a call that computes carries an `Idempotency-Key`, which its retries share."""
    cache_control: str = ""
    """For example `no-cache`, `no-store`, `max-age=60`, `only-if-cached`."""
    criticality: Criticality = "default"
    """What is refused first while backends are full: `sheddable`."""
    headers: Mapping[str, str] = MappingProxyType({})
    """More headers, for example `traceparent`."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout < float("inf"):
            raise ValueError("`timeout` must be a positive number of seconds")
        if self.retries < 0:
            raise ValueError("`retries` must be 0 or more")
