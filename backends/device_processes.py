"""Says how many backends share a GPU: one process of Python does not fill a large one."""

# Decision 0037 has the measurements: of eight cores, backends take five, the gateway and Valkey the
# rest; and six backends answer 50,000 rows a second, which is what the largest cards are meant to.
_BACKEND_SHARE = 5 / 8
_MOST = 6


def processes_for_a_gpu(cores: int, gpus: int) -> int:
    """Return how many backends run on each of `gpus` devices of a machine with so many cores.

    Each holds the weights and a context of the device, so there are no more than it needs.
    """
    if gpus < 1:
        return 1
    return max(1, min(_MOST, int(cores * _BACKEND_SHARE) // gpus))
