"""Tests how many backends share a GPU, by the cores of the machine."""

import pytest

from gateway.supervisor.device_processes import processes_for_a_gpu


@pytest.mark.parametrize(
    ("cores", "gpus", "processes"),
    [
        (1, 1, 1),
        (4, 1, 2),
        (8, 1, 5),
        (16, 1, 6),
        (128, 1, 6),
        (16, 4, 2),
        (4, 8, 1),
        (128, 8, 6),
        (8, 0, 1),
    ],
)
def test_backends_share_the_cores_that_the_gateway_leaves(
    cores: int, gpus: int, processes: int
) -> None:
    assert processes_for_a_gpu(cores, gpus) == processes
