"""Chooses all cores or one for a batch: wide while it is alone, narrow under load."""

from backends.executors.cost import CostModel

# So many batches in a row must have been alone before one runs wide.
_ALONE_BEFORE_WIDE = 3


class ParallelismChoice:
    """Decides for one model. One worker thread calls it at a time."""

    def __init__(self, *, narrow: CostModel, wide: CostModel | None, always: bool = False) -> None:
        self._narrow = narrow
        self._wide = wide
        self._always = always
        self._alone = 0

    def choose(self, *, alone: bool, rows: int, longest: int, tokens: int) -> bool:
        """Return whether to run wide a batch that is the only work there is, or is not."""
        if self._wide is None:
            return False
        if self._always:
            return True
        self._alone = self._alone + 1 if alone else 0
        if self._alone <= _ALONE_BEFORE_WIDE:
            return False
        wide = self._wide.seconds(rows=rows, longest=longest, tokens=tokens)
        return wide < self._narrow.seconds(rows=rows, longest=longest, tokens=tokens)
