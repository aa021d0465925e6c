"""Records the steps of a run, and their digest, by which two runs can be compared."""

from array import array
from hashlib import blake2b
from typing import Final

_PIECE: Final = 1000
"""Steps that are added to the digest together."""


class Trace:
    """Has the steps of a run: every event in the digest, and noted lines as text.

    With `keeps_steps` the lines include every step, so that the first difference of two runs can
    be found.
    """

    def __init__(self, *, keeps_steps: bool = False) -> None:
        self._times = array("d")
        self._labels: list[str] = []
        self.lines: list[str] = []
        """Lines of "virtual time, machine/process, what"."""
        self._keeps_steps = keeps_steps
        self._digest = blake2b(digest_size=16)

    def step(self, time: float, label: str) -> None:
        """Add a step to the digest."""
        self._times.append(time)
        self._labels.append(label)
        if len(self._labels) == _PIECE:
            self._flush()
        if self._keeps_steps:
            self.lines.append(f"{time:.9f} {label}")

    def note(self, time: float, who: str, what: str) -> None:
        """Add a line, which counts in the digest, too."""
        self._flush()
        line = f"{time:.6f} {who} {what}"
        self._digest.update(line.encode())
        self.lines.append(line)

    def digest(self) -> str:
        """Return the hash of all steps so far."""
        self._flush()
        return self._digest.hexdigest()

    def _flush(self) -> None:
        self._digest.update(self._times.tobytes())
        self._digest.update("\n".join(self._labels).encode())
        del self._times[:], self._labels[:]
