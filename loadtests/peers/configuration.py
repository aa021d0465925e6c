"""Passes the configuration of a peer from the benchmark to the peer's server.

This module uses only the standard library, because the servers import it in their own virtual
environments.
"""

import json
import os
from dataclasses import asdict, dataclass
from typing import Self

_VARIABLE = "PEER_CONFIGURATION"
# The folder of the demo's models, and a folder for files that a server writes.
MODELS, SCRATCH = "PEER_MODELS", "PEER_SCRATCH"
# `classify` or `embed`.
TASK = "PEER_TASK"
# The published checkpoint in the folder of models, in the format of Python libraries.
PUBLISHED = "published"


@dataclass(frozen=True, kw_only=True)
class PeerConfiguration:
    """The number of worker processes and their threads; a `batch` of 1 disables batching.

    `delay` is in seconds. `options` are for the command line, if the server has one.
    """

    workers: int
    threads: int
    batch: int = 1
    delay: float = 0.0
    precision: str = "fp32"
    options: str = ""

    @property
    def label(self) -> str:
        """The configuration's label in a table."""
        of = f"{self.workers} x {self.threads} thread" + "s" * (self.threads > 1)
        wait = f", {self.delay * 1000:g} ms" if self.delay else ""
        batching = "no batching" if self.batch == 1 else f"batches <= {self.batch}{wait}"
        exact = self.precision == "fp32"
        words = (batching, of, "" if exact else self.precision, self.options)
        return ", ".join(word for word in words if word)

    def environment(self) -> dict[str, str]:
        """Return the configuration as environment variables for a server."""
        return {_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def read(cls) -> Self:
        """Return the configuration of this process."""
        return cls(**json.loads(os.environ[_VARIABLE]))
