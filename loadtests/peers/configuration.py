"""Passes the configuration of a peer from the benchmark to the peer's server.

Only the standard library: the servers import it in their own virtual environments.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

_PREFIX = "PEER_"
# The folder of the demo's models, and one for what a server writes.
MODELS = _PREFIX + "MODELS"
SCRATCH = _PREFIX + "SCRATCH"


@dataclass(frozen=True, kw_only=True)
class PeerConfiguration:
    """Workers with threads each; `batch` 1 disables batching. `delay` is in seconds."""

    workers: int
    threads: int
    batch: int = 1
    delay: float = 0.0

    @property
    def label(self) -> str:
        """Its label in a table."""
        of = f"{self.workers} x {self.threads} thread" + "s" * (self.threads > 1)
        if self.batch == 1:
            return f"no batching, {of}"
        wait = f", {self.delay * 1000:g} ms" if self.delay else ""
        return f"batches <= {self.batch}{wait}, {of}"

    def environment(self) -> dict[str, str]:
        """Return it as environment variables for a server."""
        return {f"{_PREFIX}{name.upper()}": str(value) for name, value in asdict(self).items()}

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the configuration in `environment`."""
        kinds: dict[str, type[int | float]] = {
            field.name: float if field.name == "delay" else int for field in fields(cls)
        }
        return cls(**{n: kind(environment[_PREFIX + n.upper()]) for n, kind in kinds.items()})  # type: ignore[arg-type]
