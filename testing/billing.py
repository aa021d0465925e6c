"""Runs the billing process of a system that has none."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from gateway.settings import Settings, environment, process_environment


@contextlib.contextmanager
def billing(settings: Settings) -> Iterator[None]:
    """Run a billing process while this is entered."""
    environ = dict(process_environment()) | environment(settings)
    child = subprocess.Popen([sys.executable, "-m", "gateway", "run-billing"], env=environ)
    try:
        yield
    finally:
        child.terminate()
        child.wait()
