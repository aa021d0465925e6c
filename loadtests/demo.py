"""Builds the demo models for a run."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from backends.model_tools.demo.build import build_demo_models


@contextlib.contextmanager
def demo_models() -> Iterator[Path]:
    """Build the demo models in a folder beside which there is room for more, and delete both."""
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        build_demo_models(models, print)
        yield models
