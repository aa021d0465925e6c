"""Makes a revision of a model that says the opposite."""

from pathlib import Path

import numpy as np


def turn_head(revision: Path) -> None:
    """Have a revision say the opposite."""
    path = revision / "head.npz"
    with np.load(path) as head:
        layers = {name: head[name] for name in head.files}
    last = len(layers) // 2 - 1
    for name in (f"w{last}", f"b{last}"):
        layers[name] = -layers[name]
    np.savez(path, **layers)
