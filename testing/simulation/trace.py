"""Records the steps of a run, and their digest, by which two runs can be compared."""

from hashlib import blake2b


class Trace:
    """Has the steps of a run: every event in the digest, and noted lines as text.

    With `keeps_steps` the lines include every step, so that the first difference of two runs can
    be found.
    """

    def __init__(self, *, keeps_steps: bool = False) -> None:
        self.lines: list[str] = []
        """Lines of "virtual time, machine/process, what"."""
        self._keeps_steps = keeps_steps
        self._digest = blake2b(digest_size=16)

    def step(self, time: float, label: str) -> None:
        """Add a step to the digest."""
        line = f"{time:.9f} {label}"
        self._digest.update(line.encode())
        if self._keeps_steps:
            self.lines.append(line)

    def note(self, time: float, who: str, what: str) -> None:
        """Add a line, which counts in the digest, too."""
        line = f"{time:.6f} {who} {what}"
        self._digest.update(line.encode())
        self.lines.append(line)

    def digest(self) -> str:
        """Return the hash of all steps so far."""
        return self._digest.hexdigest()
