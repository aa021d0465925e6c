"""Implements the commands on streams and their consumer groups."""

from typing import Final, NamedTuple

from testing.simulation.redis_server.commands import GROWS, WRITES, Arguments, command, integer
from testing.simulation.redis_server.data import RedisData
from testing.simulation.redis_server.resp import OK, Absent, ByKey, RedisError, Reply
from testing.simulation.redis_server.values import (
    FIRST_ID,
    LAST_ID,
    EntryId,
    Group,
    Pending,
    Stream,
)

_BAD_ID: Final = "ERR Invalid stream ID specified as stream command argument"
_UINT64: Final = 2**64


class Wait(NamedTuple):
    """Says that the client blocks until an entry is added to the stream at `key`."""

    key: bytes
    milliseconds: int
    """0 for ever."""


@command(b"XADD", 4, effect=GROWS)
def _xadd(data: RedisData, arguments: Arguments) -> Reply:
    key, name, *fields = arguments
    if len(fields) % 2:
        raise RedisError("ERR wrong number of arguments for 'xadd' command")
    given = None if name == b"*" else _entry_id(name)
    if given == FIRST_ID:
        raise RedisError("ERR The ID specified in XADD must be greater than 0-0")
    last = data.read(key, Stream).last
    entry_id = max(EntryId(data.now_ms, 0), last.next()) if given is None else given
    if entry_id <= last:
        raise RedisError(
            "ERR The ID specified in XADD is equal or smaller than the target stream top item"
        )
    data.make(key, Stream).append(entry_id, fields)
    data.changed[key] = None
    return entry_id.encode()


@command(b"XLEN", 1, 1)
def _xlen(data: RedisData, arguments: Arguments) -> Reply:
    return len(data.read(arguments[0], Stream))


@command(b"XRANGE", 3, 5)
def _xrange(data: RedisData, arguments: Arguments) -> Reply:
    key, first, last, *options = arguments
    return _range(data, key, first, last, options, step=1)


@command(b"XREVRANGE", 3, 5)
def _xrevrange(data: RedisData, arguments: Arguments) -> Reply:
    key, last, first, *options = arguments
    return _range(data, key, first, last, options, step=-1)


def _range(
    data: RedisData, key: bytes, first: bytes, last: bytes, options: list[bytes], *, step: int
) -> Reply:
    ids = _entry_id(first), _entry_id(last, missing=_UINT64 - 1)
    count = None
    match options:
        case []:
            pass
        case [word, number] if word.upper() == b"COUNT":
            count = max(0, integer(number))
        case _:
            raise NotImplementedError(f"the simulated Redis does not know XRANGE {options}")
    stream = data.find(key, Stream)
    if stream is None:
        return []
    if count == 0:
        return Absent.LIST
    return [_entry(stream, entry_id) for entry_id in stream.between(*ids)[::step][:count]]


@command(b"XTRIM", 3, 4, WRITES)
def _xtrim(data: RedisData, arguments: Arguments) -> Reply:
    key, *options = arguments
    match [options[0].upper(), *options[1:]]:
        case [b"MINID", minimum] | [b"MINID", b"=", minimum]:
            first = _entry_id(minimum)
            stream = data.find(key, Stream)
            return 0 if stream is None else stream.delete_before(first)
        case _:
            raise NotImplementedError(f"the simulated Redis does not know XTRIM {options}")


@command(b"XGROUP", 4, 5, GROWS)
def _xgroup(data: RedisData, arguments: Arguments) -> Reply:
    action, key, name, start, *options = arguments
    if action.upper() != b"CREATE" or [o.upper() for o in options] not in ([], [b"MKSTREAM"]):
        raise NotImplementedError(f"the simulated Redis does not know XGROUP {action!r} {options}")
    stream = data.find(key, Stream)
    if stream is None and not options:
        raise RedisError(
            "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want"
            " to use the MKSTREAM option to create an empty stream automatically."
        )
    last = data.read(key, Stream).last if start == b"$" else _entry_id(start)
    stream = data.make(key, Stream)
    if name in stream.groups:
        raise RedisError("BUSYGROUP Consumer Group name already exists")
    stream.groups[name] = Group(last)
    return OK


@command(b"XREADGROUP", 6, effect=WRITES)
def xreadgroup(data: RedisData, arguments: Arguments) -> Reply:
    """Return the entries of a stream, or `Wait` if the client must block."""
    match arguments:
        case [word, group, consumer, *rest] if word.upper() == b"GROUP":
            options = dict(zip([o.upper() for o in rest[:-3:2]], rest[1:-3:2], strict=False))
            *_, streams, key, start = rest
        case _:
            raise RedisError("ERR syntax error")
    if streams.upper() != b"STREAMS" or not options.keys() <= {b"COUNT", b"BLOCK"}:
        raise NotImplementedError(f"the simulated Redis does not know XREADGROUP {rest}")
    count = integer(options[b"COUNT"]) if b"COUNT" in options else 0
    block = integer(options[b"BLOCK"]) if b"BLOCK" in options else None
    found, members = _group(data, key, group, " in XREADGROUP with GROUP option")
    after = None if start == b">" else _entry_id(start)
    members.consumers[consumer] = None
    if after is not None:
        entries = _redeliver(found, members, consumer, after, count, data.now_ms)
    else:
        entries = _deliver(found, members, consumer, count, data.now_ms)
        if not entries:
            return Absent.LIST if block is None else Wait(key, block)
    return ByKey(key, entries)


def _deliver(stream: Stream, group: Group, consumer: bytes, count: int, now: int) -> list[Reply]:
    """Return the entries that no consumer of the group has got."""
    ids = stream.between(group.last.next(), LAST_ID)[: count or None]
    for entry_id in ids:
        group.pending[entry_id] = Pending(consumer, now)
        if group.entries_read is None:
            group.entries_read = stream.position(entry_id)
        else:
            group.entries_read += 1
        group.last = entry_id
    return [_entry(stream, entry_id) for entry_id in ids]


def _redeliver(
    stream: Stream, group: Group, consumer: bytes, after: EntryId, count: int, now: int
) -> list[Reply]:
    """Return the consumer's pending entries. Those that were deleted have no fields."""
    ids = [i for i, p in group.pending.items() if p.consumer == consumer and i > after]
    ids = ids[: count or None]
    group.pending |= {i: Pending(consumer, now) for i in ids if i in stream.entries}
    return [_entry(stream, i) if i in stream.entries else [i.encode(), Absent.LIST] for i in ids]


@command(b"XACK", 3, effect=WRITES)
def _xack(data: RedisData, arguments: Arguments) -> Reply:
    key, name, *ids = arguments
    stream = data.find(key, Stream)
    group = None if stream is None else stream.groups.get(name)
    parsed = [_entry_id(entry_id) for entry_id in ids] if group is not None else []
    pending = {} if group is None else group.pending
    return sum([pending.pop(entry_id, None) is not None for entry_id in parsed])


@command(b"XPENDING", 2, 2)
def _xpending(data: RedisData, arguments: Arguments) -> Reply:
    key, name = arguments
    _, group = _group(data, key, name)
    if not group.pending:
        return [0, None, None, Absent.LIST]
    counts: dict[bytes, int] = {}
    for pending in group.pending.values():
        counts[pending.consumer] = counts.get(pending.consumer, 0) + 1
    ids = list(group.pending)
    consumers = [[name, b"%d" % counts[name]] for name in sorted(counts)]
    return [len(ids), ids[0].encode(), ids[-1].encode(), consumers]


@command(b"XAUTOCLAIM", 5, 7, WRITES)
def _xautoclaim(data: RedisData, arguments: Arguments) -> Reply:
    key, name, consumer, least_idle, start, *options = arguments
    count = 100
    match options:
        case []:
            pass
        case [word, number] if word.upper() == b"COUNT":
            count = integer(number)
        case _:
            raise NotImplementedError(f"the simulated Redis does not know XAUTOCLAIM {options}")
    idle, first = max(0, integer(least_idle)), _entry_id(start)
    stream, group = _group(data, key, name)
    group.consumers[consumer] = None
    waiting = [entry_id for entry_id in group.pending if entry_id >= first]
    claimed: list[EntryId] = []
    deleted: list[EntryId] = []
    seen = 0
    while seen < len(waiting) and seen < 10 * count and len(claimed) + len(deleted) < count:
        entry_id = waiting[seen]
        seen += 1
        if entry_id not in stream.entries:
            deleted.append(entry_id)
            del group.pending[entry_id]
        elif data.now_ms - group.pending[entry_id].delivered_at >= idle:
            claimed.append(entry_id)
            group.pending[entry_id] = Pending(consumer, data.now_ms)
    cursor = waiting[seen] if seen < len(waiting) else FIRST_ID
    entries = [_entry(stream, entry_id) for entry_id in claimed]
    return [cursor.encode(), entries, [entry_id.encode() for entry_id in deleted]]


@command(b"XINFO", 2, 2)
def _xinfo(data: RedisData, arguments: Arguments) -> Reply:
    action, key = arguments
    if action.upper() != b"GROUPS":
        raise NotImplementedError(f"the simulated Redis does not know XINFO {action!r}")
    stream = data.find(key, Stream)
    if stream is None:
        raise RedisError("ERR no such key")
    return [_info(stream, name, stream.groups[name]) for name in sorted(stream.groups)]


def _info(stream: Stream, name: bytes, group: Group) -> dict[bytes, Reply]:
    read = group.entries_read
    known = stream.position(group.last) if read is None else read
    return {
        b"name": name,
        b"consumers": len(group.consumers),
        b"pending": len(group.pending),
        b"last-delivered-id": group.last.encode(),
        b"entries-read": read,
        b"lag": None if known is None else stream.added - known,
    }


def _group(data: RedisData, key: bytes, name: bytes, where: str = "") -> tuple[Stream, Group]:
    stream = data.find(key, Stream)
    group = None if stream is None else stream.groups.get(name)
    if stream is None or group is None:
        names = f"'{key.decode()}' or consumer group '{name.decode()}'"
        raise RedisError(f"NOGROUP No such key {names}{where}")
    return stream, group


def _entry(stream: Stream, entry_id: EntryId) -> list[Reply]:
    return [entry_id.encode(), stream.entries[entry_id]]


def _entry_id(text: bytes, *, missing: int = 0) -> EntryId:
    """Parse an id. `missing` is the sequence number of an id that has none."""
    if text in (b"-", b"+"):
        return FIRST_ID if text == b"-" else LAST_ID
    time, dash, sequence = text.partition(b"-")
    if not time.isdigit() or not (sequence.isdigit() or not dash):
        raise RedisError(_BAD_ID)
    entry_id = EntryId(int(time), int(sequence) if dash else missing)
    if max(entry_id) >= _UINT64:
        raise RedisError(_BAD_ID)
    return entry_id
