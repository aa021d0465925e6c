"""Holds the values of keys. Each has a `copy`, which shares nothing that can change."""

from bisect import bisect_left, insort
from typing import NamedTuple, Self

from typing_extensions import override


class Hash(dict[bytes, bytes]):
    """A hash. Fields keep the order in which they were first set."""

    __slots__ = ()

    @override
    def copy(self) -> Self:
        return type(self)(self)


class MemberSet(dict[bytes, None]):
    """A set. Members keep the order in which they were added, which does not depend on hashes."""

    __slots__ = ()

    @override
    def copy(self) -> Self:
        return type(self)(self)


class SortedSet:
    """Members with scores, in the order of their scores and then of their bytes."""

    def __init__(self) -> None:
        self._scores: dict[bytes, float] = {}
        self.ordered: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self._scores)

    def copy(self) -> "SortedSet":
        """Return an independent copy."""
        other = SortedSet()
        other._scores, other.ordered = dict(self._scores), list(self.ordered)
        return other

    def add(self, member: bytes, score: float) -> bool:
        """Set the member's score. Return whether the member is new."""
        is_new = not self.remove(member)
        self._scores[member] = score
        insort(self.ordered, (score, member))
        return is_new

    def remove(self, member: bytes) -> bool:
        """Remove the member. Return whether it was there."""
        score = self._scores.pop(member, None)
        if score is None:
            return False
        del self.ordered[bisect_left(self.ordered, (score, member))]
        return True


class EntryId(NamedTuple):
    """The id of an entry in a stream."""

    time: int
    """Milliseconds since 1970."""
    sequence: int

    def encode(self) -> bytes:
        """Return the id as a client sees it."""
        return b"%d-%d" % self

    def next(self) -> "EntryId":
        """Return the id that follows."""
        return EntryId(self.time, self.sequence + 1)


FIRST_ID = EntryId(0, 0)
LAST_ID = EntryId(2**64 - 1, 2**64 - 1)


class Pending(NamedTuple):
    """A delivery that its consumer has not acknowledged."""

    consumer: bytes
    delivered_at: int
    """Milliseconds since 1970."""


class Group:
    """A consumer group."""

    def __init__(self, last: EntryId) -> None:
        self.last = last
        self.entries_read: int | None = None
        """How many entries of the stream's history have been delivered; `None` if unknown."""
        self.consumers: dict[bytes, None] = {}
        self.pending: dict[EntryId, Pending] = {}
        """In the order of ids."""

    def copy(self) -> "Group":
        """Return an independent copy."""
        other = Group(self.last)
        other.entries_read = self.entries_read
        other.consumers, other.pending = dict(self.consumers), dict(self.pending)
        return other


class Stream:
    """A stream and its groups. A stream can be empty."""

    def __init__(self) -> None:
        self.ids: list[EntryId] = []
        self.entries: dict[EntryId, list[bytes]] = {}
        """The fields and values of each entry, in turn."""
        self.last = FIRST_ID
        self.added = 0
        self.groups: dict[bytes, Group] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def copy(self) -> "Stream":
        """Return an independent copy."""
        other = Stream()
        other.ids, other.entries = list(self.ids), dict(self.entries)
        other.last, other.added = self.last, self.added
        other.groups = {name: group.copy() for name, group in self.groups.items()}
        return other

    def append(self, entry_id: EntryId, fields: list[bytes]) -> None:
        """Append an entry. Its id must be above `last`."""
        self.ids.append(entry_id)
        self.entries[entry_id] = fields
        self.last = entry_id
        self.added += 1

    def delete_before(self, minimum: EntryId) -> int:
        """Delete the entries with lower ids. Return their number."""
        count = bisect_left(self.ids, minimum)
        for entry_id in self.ids[:count]:
            del self.entries[entry_id]
        del self.ids[:count]
        return count

    def between(self, first: EntryId, last: EntryId) -> list[EntryId]:
        """Return the ids from `first` to `last`, both included."""
        return self.ids[bisect_left(self.ids, first) : bisect_left(self.ids, last.next())]

    def position(self, entry_id: EntryId) -> int | None:
        """Return how many entries were ever added up to `entry_id`; `None` if that is unknown."""
        if entry_id >= self.last or not self.added:
            return self.added if entry_id <= self.last or not self.added else None
        if not self.ids:
            return self.added
        if entry_id <= self.ids[0]:
            return self.added - len(self.ids) + (entry_id == self.ids[0])
        return None


Value = bytes | list[bytes] | Hash | MemberSet | SortedSet | Stream
