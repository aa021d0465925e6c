"""Defines the options of calls: timeout, retries and headers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

Criticality = Literal["critical", "default", "sheddable"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the options of calls."""

    timeout: float = 30.0
    """Seconds for the whole call with all retries. The gateway gets the remaining time.

    In the blocking client, it also limits each read from the connection.
    """
    retries: int = 3
    """The maximum number of retries.

    Waiting for an earlier attempt that is still being answered does not count, unless this is 0.
    """
    idempotency: bool = True
    """Whether calls of models have an `Idempotency-Key`, so that retries are billed once."""
    cache_control: str = ""
    """The header `Cache-Control`: `no-cache`, `no-store`, `max-age=60`, `only-if-cached`, ..."""
    criticality: Criticality = "default"
    """Overloaded backends refuse `sheddable` calls first and `critical` calls last."""
    headers: Mapping[str, str] = MappingProxyType({})
    """Additional headers, such as `traceparent`."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout < float("inf"):
            raise ValueError("`timeout` must be a positive number of seconds")
        if self.retries < 0:
            raise ValueError("`retries` must be 0 or more")
