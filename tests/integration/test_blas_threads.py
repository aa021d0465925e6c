"""Processes that run models multiply matrices in the calling thread."""

import subprocess
import sys

import pytest

from sluicegate.backends.settings import process_environment

_MULTIPLY = """
import contextlib, os, runpy, sys

module = sys.argv[1]
sys.argv[1:] = ["--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(None):
    runpy.run_module(module, run_name="__main__")

import numpy

matrix = numpy.ones((512, 512), dtype=numpy.float32)
matrix @ matrix
print(len(os.listdir("/proc/self/task")))
"""
_OWN = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


@pytest.mark.parametrize("module", ["backends", "bulk"])
def test_a_product_of_matrices_starts_no_threads(module: str) -> None:
    inherited = process_environment().items()
    environment = {name: value for name, value in inherited if name not in _OWN}

    done = subprocess.run(
        [sys.executable, "-c", _MULTIPLY, module],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60.0,
        check=True,
    )

    assert int(done.stdout) == 1
