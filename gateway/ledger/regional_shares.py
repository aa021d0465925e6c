"""Stores the shares of limits and the units of quotas that gateway regions have.

Every worker reports its demand about once a second, and so renews its lease. The transactions of
these reports run one at a time. A region is live while one of its workers has a lease. When the
last lease has expired, other regions get the region's shares. `gateway.regional_limits.policy`
decides how large each share is.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, case, delete, func, select, update

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.store import Store
from sluicegate.gateway.ledger.types import RegionLease, RegionShare
from sluicegate.gateway.regional_limits.policy import (
    LEASE,
    REST,
    OtherRegions,
    ShareEntry,
    decide,
    first_entries,
)
from sluicegate.gateway.regional_limits.values import (
    BucketShare,
    BucketShares,
    QuotaDemand,
    ShareReport,
)

_Entries: TypeAlias = dict[str, dict[str, ShareEntry]]
_LOCK: Final = "shares"
_SECOND: Final = 1_000_000_000
_RECENT: Final = 600 * _SECOND
"""After a bucket had no demand for this many nanoseconds, its shares are no longer recomputed."""
_OVERLAP: Final = 5 * _SECOND
_LONGEST_STEP: Final = 2 * _SECOND
"""Between two reports, at most this many nanoseconds count as passed."""
_OUTDATED: Final = -1
"""The time `seen` of a worker after the store's clock was set back, until the worker reports."""
_GRANT: Final = 0.05
_KEEP_GRANTS: Final = 40 * 86_400


class RegionalShareStore:
    """Implements `ShareStore` with SQL. All calls block and may raise `DependencyUnavailable`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def report(self, report: ShareReport, *, lease: float, longest: float) -> BucketShares:
        """Record a worker's demand; return its region's shares, valid for `lease` seconds.

        A request takes at most `longest` seconds. Its units can stay reserved for that time.
        """
        with self._store.writing() as connection:
            now = self._store.lock_subject(connection, _LOCK)
            is_renewed, is_live = self._renew(connection, report, now, lease)
            if not is_live:
                self._join(connection, report.region, now)
            # Other regions may have had the shares of a worker whose lease expired, even if the
            # worker's clock stood still meanwhile.
            since = report.seen - _OVERLAP if report.seen and is_renewed else 0
            others = self._others(connection, report.region)
            entries = self._entries(connection, report, now)
            before = _own(entries, report.region)
            _count(entries, report, now, longest)
            rest = self._decide(connection, entries, before, report.region, others, now)
            return BucketShares(
                now=now,
                lease=lease,
                regions=len(others.regions),
                rest=_share(rest),
                changed=self._changed(connection, report.region, since),
                are_all=not since,
                granted=self._grant(connection, report, len(others.regions), now),
            )

    def leave(self, region: str, worker: str) -> None:
        """Delete the lease of a stopped worker, unless the worker is the last one of its region."""
        table = schema.region_workers
        with self._store.writing() as connection:
            self._store.lock_subject(connection, _LOCK)
            here = select(func.count()).where(table.c.region == region)
            if (connection.scalar(here) or 0) > 1:
                own = (table.c.region == region) & (table.c.worker == worker)
                connection.execute(delete(table).where(own))

    def regions(self) -> list[RegionLease]:
        """Return the live regions, sorted by name."""
        table = schema.region_workers
        query = select(table.c.region, func.count(), func.max(table.c.expires))
        now = self._store.clock()
        with self._store.reading() as connection:
            found = connection.execute(query.group_by(table.c.region).order_by(table.c.region))
            return [
                RegionLease(
                    name=name, workers=workers, expires_in=round((expires - now) / _SECOND, 1)
                )
                for name, workers, expires in found
            ]

    def shares(self, tenant: str | None = None) -> list[RegionShare]:
        """Return the shares of all buckets, or only of the buckets of `tenant`."""
        table = schema.region_shares
        query = select(table).order_by(table.c.bucket, table.c.region)
        if tenant is not None:
            query = query.where(table.c.bucket.startswith(f"rl:{{{tenant}}}", autoescape=True))
        now = self._store.clock()
        with self._store.reading() as connection:
            entries = [_entry(found) for found in connection.execute(query)]
        return [
            RegionShare(
                bucket=entry.bucket,
                region=entry.region,
                share=round(entry.used, 4),
                held=round(entry.held, 4),
                demand=round(entry.demanded(now), 3),
            )
            for entry in entries
        ]

    def _renew(
        self, connection: Connection, report: ShareReport, now: int, lease: float
    ) -> tuple[bool, bool]:
        """Renew a worker's lease, and delete expired leases.

        Returns:
            Whether the worker had a lease that is still known, and whether its region was live.
        """
        workers, shares = schema.region_workers, schema.region_shares
        self._count_time(connection, now, lease)
        over = now - int(LEASE * _SECOND)
        connection.execute(delete(workers).where(workers.c.expires < over))
        living = set(connection.scalars(select(workers.c.region).distinct()))
        connection.execute(delete(shares).where(shares.c.region.not_in(living)))
        expires = now + int(lease * _SECOND)
        same = (workers.c.region == report.region) & (workers.c.worker == report.worker)
        # After the clock was set back, the worker's `seen` may be a time before the change.
        is_known = same & (workers.c.seen != _OUTDATED)
        if report.seen <= now:
            renewal = update(workers).where(is_known).values(seen=report.seen, expires=expires)
            if connection.execute(renewal).rowcount:
                return True, report.region in living
        connection.execute(delete(workers).where(same))
        own = {"region": report.region, "worker": report.worker, "seen": 0, "expires": expires}
        connection.execute(workers.insert().values(own))
        return False, report.region in living

    def _count_time(self, connection: Connection, now: int, lease: float) -> None:
        """Postpone what is due, if more than `_LONGEST_STEP` has passed since the last report.

        Either no region could reach the store, or the store's clock was set forward. If the clock
        was set back, what is due later begins again at `now`.
        """
        workers, shares = schema.region_workers.c, schema.region_shares.c
        changes = schema.changes
        this = changes.c.subject == _LOCK
        reported = int(connection.scalar(select(changes.c.count).where(this)) or 0)
        if now < reported:
            self._set_back(connection, now, lease)
        # A worker of an older version does not record its report in `changes`. But the times `seen`
        # are the times of reports, too.
        known = connection.scalar(select(func.max(workers.seen)))
        last = max(reported, int(known or 0)) or now
        uncounted = now - last - _LONGEST_STEP
        if uncounted > 0:
            later = {"expires": workers.expires + uncounted}
            connection.execute(update(schema.region_workers).values(later))
            pending = update(schema.region_shares).where(shares.lowers > 0)
            connection.execute(pending.values(lowers=shares.lowers + uncounted))
        if not connection.execute(update(changes).where(this).values(count=now)).rowcount:
            connection.execute(changes.insert().values(subject=_LOCK, count=now))

    def _set_back(self, connection: Connection, now: int, lease: float) -> None:
        """Begin again, at `now`, all times after `now`: the store's clock was set back.

        No worker counts as having seen its region's shares: the times of later changes may be
        before the times that workers have seen.
        """
        workers, shares = schema.region_workers, schema.region_shares
        end = now + int(lease * _SECOND)
        ends = case((workers.c.expires > end, end), else_=workers.c.expires)
        connection.execute(update(workers).values(seen=_OUTDATED, expires=ends))
        lowered = update(shares).where(shares.c.lowered > 0)
        connection.execute(lowered.values(lowered=now, lowers=0))
        counted = update(shares).where(shares.c.counted > now)
        connection.execute(counted.values(counted=now))

    def _join(self, connection: Connection, region: str, now: int) -> None:
        """Insert the entries of a new region.

        Its shares are 1 if the store has never had a region, and 0 otherwise.
        """
        table = schema.region_shares
        known = list(connection.scalars(select(table.c.bucket).distinct()))
        had = 0.0 if known else 1.0
        first = ShareEntry(bucket=REST, region=region, held=had, used=had, before=had, changed=now)
        entries = [replace(first, bucket=bucket) for bucket in known or [REST]]
        connection.execute(table.insert(), [msgspec.structs.asdict(entry) for entry in entries])

    def _others(self, connection: Connection, own: str) -> OtherRegions:
        workers = schema.region_workers
        seen = select(func.min(workers.c.seen)).where(workers.c.region == own)
        return OtherRegions(
            regions=frozenset(connection.scalars(select(workers.c.region).distinct())),
            seen=int(connection.scalar(seen) or 0),
        )

    def _entries(self, connection: Connection, report: ShareReport, now: int) -> _Entries:
        """Insert entries for new buckets; return the entries of all buckets with recent demand."""
        table = schema.region_shares
        lately = select(table.c.bucket).where(table.c.counted > now - _RECENT).distinct()
        wanted = table.c.bucket.in_(lately) | table.c.bucket.in_([REST, *report.demand])
        entries: _Entries = {}
        for entry in map(_entry, connection.execute(select(table).where(wanted))):
            entries.setdefault(entry.bucket, {})[entry.region] = entry
        for bucket in report.demand:
            if bucket not in entries:
                entries[bucket] = first_entries(entries[REST], bucket, now)
                connection.execute(
                    table.insert(), [msgspec.structs.asdict(r) for r in entries[bucket].values()]
                )
        return entries

    def _decide(
        self,
        connection: Connection,
        entries: _Entries,
        before: Mapping[str, ShareEntry],
        own: str,
        others: OtherRegions,
        now: int,
    ) -> ShareEntry:
        """Compute the region's shares, and write those entries that have changed since `before`.

        Returns:
            The region's entry for `REST`, which stands for all buckets without an entry.
        """
        table = schema.region_shares
        decided = [
            decide(of_bucket, bucket=bucket, own=own, others=others, now=now)
            for bucket, of_bucket in entries.items()
        ]
        written = [entry for entry in decided if entry != before.get(entry.bucket)]
        mine = (table.c.region == own) & table.c.bucket.in_([entry.bucket for entry in written])
        connection.execute(delete(table).where(mine))
        if written:
            connection.execute(table.insert(), [msgspec.structs.asdict(entry) for entry in written])
        return next(entry for entry in decided if entry.bucket == REST)

    def _changed(self, connection: Connection, region: str, since: int) -> dict[str, BucketShare]:
        table = schema.region_shares
        query = select(table).where((table.c.region == region) & (table.c.changed >= since))
        return {
            entry.bucket: _share(entry)
            for entry in map(_entry, connection.execute(query))
            if entry.bucket != REST
        }

    def _grant(
        self, connection: Connection, report: ShareReport, regions: int, now: int
    ) -> dict[str, int]:
        """Grant the region more units of quotas; return all its granted units of each quota.

        One call usually grants at most 5 % of a quota. When few units of the quota are left, a call
        grants fewer, so that other regions can get some, too.
        """
        table = schema.quota_grants
        granted: dict[str, int] = {}
        for bucket, demand in report.quotas.items():
            of_period = (table.c.bucket == bucket) & (table.c.period == demand.period)
            query = select(table.c.region, table.c.granted).where(of_period)
            known = {entry.region: entry.granted for entry in connection.execute(query)}
            own = known.get(report.region, 0)
            # If `own` is larger, the region already has units that the worker does not know of.
            if own <= demand.granted:
                own += _step(demand, left=demand.limit - sum(known.values()), regions=regions)
                mine = {"bucket": bucket, "period": demand.period, "region": report.region}
                if not self._store.insert_new(connection, table, [mine | {"granted": own}]):
                    same = of_period & (table.c.region == report.region)
                    connection.execute(update(table).where(same).values(granted=own))
            granted[bucket] = own
        if granted:
            old = now // _SECOND - _KEEP_GRANTS
            connection.execute(delete(table).where(table.c.period < old))
        return granted


def _own(entries: _Entries, region: str) -> dict[str, ShareEntry]:
    """Return a region's entries by bucket."""
    return {bucket: found[region] for bucket, found in entries.items() if region in found}


def _count(entries: _Entries, report: ShareReport, now: int, longest: float) -> None:
    """Increase the demand in the region's entries by the demand in `report`."""
    for bucket, demand in report.demand.items():
        counted = entries[bucket][report.region].with_demand(demand.units, now)
        linger = longest if demand.is_held else 0.0
        entries[bucket][report.region] = replace(counted, linger=linger)


def _step(demand: QuotaDemand, *, left: int, regions: int) -> int:
    usual = min(int(demand.limit * _GRANT), left // (2 * regions))
    return max(0, min(left, max(1, demand.minimum, usual)))


def _share(entry: ShareEntry) -> BucketShare:
    return BucketShare(used=entry.used, before=entry.before, raised=entry.raised / _SECOND)


def _entry(found: Any) -> ShareEntry:
    return msgspec.convert(found._mapping, ShareEntry)  # noqa: SLF001 - public, in spite of its name
