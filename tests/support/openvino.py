"""Skips tests that need OpenVINO, or bf16 of the CPU, where it is not there."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.openvino_graph import check_precision


def need_openvino() -> None:
    """Skip the test where OpenVINO is not installed."""
    __tracebackhide__ = True  # the test is named as what was skipped
    if find_spec("openvino") is None:
        pytest.skip("OpenVINO is not installed (pip install openvino)")


def need_bf16_of_the_cpu() -> None:
    """Skip the test where OpenVINO is not installed or the CPU has no bf16."""
    __tracebackhide__ = True
    need_openvino()
    try:
        check_precision(GraphSource(path=Path(), outputs={}, dimensions=1, precision="bf16"))
    except ModelProblem:
        pytest.skip("this CPU has no bf16")
