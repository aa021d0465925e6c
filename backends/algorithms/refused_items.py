"""Remembers for a while which items made their algorithm's process fail."""

from collections import OrderedDict

from sluicegate.backends.errors import ItemRefused

_TIME = 60.0
_MOST = 4_096


class RefusedItems:
    """Holds the digests of the last `most` refused items, each for `time` seconds."""

    def __init__(self, *, time: float = _TIME, most: int = _MOST) -> None:
        self._time = time
        self._most = most
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def add(self, digest: bytes, now: float) -> None:
        """Refuse an item from now on."""
        self._until[digest] = now + self._time
        self._until.move_to_end(digest)
        if len(self._until) > self._most:
            self._until.popitem(last=False)

    def check(self, digest: bytes, now: float) -> None:
        """Raise `ItemRefused` if an item is refused at present."""
        if self._until.get(digest, now) > now:
            raise self.error("ended")

    def error(self, reason: str) -> ItemRefused:
        """Return the error for a refused item."""
        detail = (
            f"the algorithm's process failed on this item ({reason}), so the backend refuses the "
            f"item for {self._time:g} s"
        )
        return ItemRefused("algorithm_killed", detail)
