"""Chooses how many backends share a GPU, because one Python process cannot feed a large GPU."""

# Decision 0037 has the measurements. Backends take five of eight cores; the gateway and Valkey take
# the other three. Six backends answer 50,000 rows a second, which is enough for the largest cards.
_BACKEND_SHARE = 5 / 8
_MOST = 6


def processes_for_a_gpu(cores: int, gpus: int) -> int:
    """Return how many backends to run on each GPU of a machine with `cores` cores.

    The number is bounded, because each backend has its own copy of the weights and a CUDA context.
    """
    if gpus < 1:
        return 1
    return max(1, min(_MOST, int(cores * _BACKEND_SHARE) // gpus))
