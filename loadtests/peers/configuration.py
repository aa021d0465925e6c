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
# `classify` or `embed`.
TASK = _PREFIX + "TASK"
# In the folder of models: the published checkpoint, as Python libraries read it.
PUBLISHED = "published"


@dataclass(frozen=True, kw_only=True)
class PeerConfiguration:
    """Workers with threads each; `batch` 1 disables batching. `delay` is in seconds.

    `options` are for the command line of a server that has one.
    """

    workers: int
    threads: int
    batch: int = 1
    delay: float = 0.0
    precision: str = "fp32"
    options: str = ""

    @property
    def label(self) -> str:
        """Its label in a table."""
        of = f"{self.workers} x {self.threads} thread" + "s" * (self.threads > 1)
        wait = f", {self.delay * 1000:g} ms" if self.delay else ""
        batching = "no batching" if self.batch == 1 else f"batches <= {self.batch}{wait}"
        exact = self.precision == "fp32"
        words = (batching, of, "" if exact else self.precision, self.options)
        return ", ".join(word for word in words if word)

    def environment(self) -> dict[str, str]:
        """Return it as environment variables for a server."""
        return {f"{_PREFIX}{name.upper()}": str(value) for name, value in asdict(self).items()}

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the configuration in `environment`."""
        return cls(
            **{
                field.name: field.type(environment[_PREFIX + field.name.upper()])  # type: ignore[operator]
                for field in fields(cls)
            }
        )
