"""Finds free loopback ports."""

import contextlib
import os
import random
import socket
import sys
from collections import deque

# The ports lie below the range of ephemeral ports (32,768 to 60,999 by default). A port in that
# range could become another process's outgoing port before a server, which takes seconds to start,
# binds it. The gateway chooses the ports of its backends above this range.
_PORTS = range(10_000, 20_000)
_ATTEMPTS = 200
_CLAIMS_KEPT = 64

# File descriptors of the newest claims. A claim keeps other processes off a port until a server has
# bound it.
_claims: deque[int] = deque()
_choose = random.SystemRandom()


def free_port() -> int:
    """Return a free loopback port that no process has recently got from this function.

    Raises:
        RuntimeError: no free port was found.
    """
    for _ in range(_ATTEMPTS):
        port = _choose.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _claims.append(_claim(port))
            if len(_claims) > _CLAIMS_KEPT:
                os.close(_claims.popleft())
            return port
    raise RuntimeError("no free loopback port was found")


def _claim(port: int) -> int:
    """Claim a port, and return the descriptor of a socket named after the port.

    Only one socket at a time can have this name. The name is free again when the descriptor is
    closed.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        if sys.platform == "linux":  # such a name needs no file
            claim.bind(f"\0sluicegate-test-port-{port}")
        return claim.detach()
