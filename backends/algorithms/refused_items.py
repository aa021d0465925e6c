"""Remembers for a while which items ended the process of their algorithm."""

from collections import OrderedDict

from backends.errors import ItemRefused

_TIME = 60.0
_MOST = 4_096


class RefusedItems:
    """Holds the digests of items that are refused, the latest ones where there are too many."""

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
        """Raise `ItemRefused` while an item is refused."""
        if self._until.get(digest, now) > now:
            raise self.error("ended")

    def error(self, reason: str) -> ItemRefused:
        """Return what the caller of such an item gets."""
        detail = f"the algorithm's process was {reason} by this item, which is refused for a while"
        return ItemRefused("algorithm_killed", detail)
