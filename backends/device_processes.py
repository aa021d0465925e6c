"""Says how many backends share a GPU: one process of Python does not fill a large one."""

_BACKEND_SHARE = 5 / 8
"""The backends' part of the processor time of an item; the gateway and Valkey take the rest."""
_MOST = 6
"""Each holds the weights and a context of the device, and predicts with the pace that it sees."""


def processes_for_a_gpu(cores: int, gpus: int) -> int:
    """Return how many backends run on each of `gpus` devices of a machine with so many cores."""
    if gpus < 1:
        return 1
    return max(1, min(_MOST, int(cores * _BACKEND_SHARE) // gpus))
