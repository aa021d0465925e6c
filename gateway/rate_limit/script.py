"""Defines the Lua script that charges buckets in Redis and leases their units to workers.

A bucket is a hash with these fields:

- `l`: its level.
- `t`: the time on the Redis server when the bucket had that level.
- `e`: when a quota's period ends.
- `c`: the bucket's capacity at time `t`.
- `f`: the excess, as `<units>:<refill rate>:<time>`. The excess is how many more units were in use
  than a lowered capacity allows. It shrinks at the refill rate.
- `h:<holder>`: the units that a worker holds, leased or reserved, and when they expire, as
  `<units>:<end>`.

The level and the held units together never exceed the capacity. A worker holds units until it
reports that they are spent. If only the level were limited, a full bucket and a full lease together
would admit twice the limit at the same time.

The argument `refill` determines the kind of the bucket. It has one of three forms:

- a number of seconds: an empty bucket fills in this time.
- `<time>:<time>`: the bucket is a quota. This period and the next one end at these times.
- `0`: the bucket does not refill; units come back when workers give them back. The bucket expires
  with the last held units.

When a limit changes, used units stay used: the level changes by as much as the capacity, but does
not fall below zero. The part of the decrease that would lead below zero is the excess (`f`). If the
limit is raised again, the excess is first deducted from the units by which the level would rise.
This matters when workers learn of a change at different times, because their calls then alternate
between the old and the new limit. Without the excess, each change back to the higher limit could
put new units into the bucket.

When only a region's share of a limit changes, the script works differently. The bucket's level does
not change immediately, so that all regions together stay within the limit. The first call with the
new share computes the refill since the previous call. It refills the bucket only up to the smaller
of the old and the new share. But if a region is granted more units of a quota, the level rises by
these units.

The script's keys are the buckets. Its first two arguments are the holder and the lifetime of held
units in seconds. Eleven arguments follow for each bucket:

- `capacity`: the bucket's capacity
- `refill`: see above
- `amount`: the units to take now
- `want`: the units to lease in addition
- `kept`: the held units that the holder keeps
- `back`: the held units that the holder gives back
- 1 if `amount` is to be reserved, 0 if it is to be spent
- 1 if the rule is in shadow mode, else 0. In shadow mode, a rule never refuses, and does not take a
  charge that exceeds the level.
- the level at which a region's bucket starts if Redis has no record of it; -1 if the limit is not
  divided among regions
- the seconds since the region's share grew. A bucket that was last used before the share grew
  refills at most to the start level (the previous argument), because other regions may have used
  the units above that level.
- the capacities of the bucket before the share grew, as `<units>:<seconds>,` for each. The latest
  capacity is the first. While a capacity applied, the bucket refilled at that capacity's rate.

The script returns a list. Its first value is 1 if all charges are allowed, else 0. Three values
follow for each bucket:

- the units that were leased, or -1 if a rule in shadow mode would have refused
- the bucket's level
- the seconds until the quota's period ends
"""

from collections.abc import Sequence

import msgspec

from sluicegate.gateway.periods import PERIODS
from sluicegate.gateway.rate_limit.base import Charge
from sluicegate.gateway.rate_limit.bucket import RegionalRule
from sluicegate.gateway.rate_limit.lease import LEASE, Lease
from sluicegate.gateway.types import Rule

_FOR_EVER = 1e9

TAKE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local mine = 'h:' .. ARGV[1]
local lease = tonumber(ARGV[2])
local buckets = {}
local allowed = 1

local function read(key, b)
  b.level, b.since, b.period_end = b.capacity, now, 0
  b.was, b.least, b.least_rate = b.capacity, b.capacity, b.rate
  if b.regional then b.level = b.start end
  b.held, b.running, b.others, b.last_end, b.beyond = 0, 0, 0, 0, 0
  local fields = redis.call('HGETALL', key)
  for f = 1, #fields, 2 do
    local name, value = fields[f], fields[f + 1]
    if name == 'l' then
      b.level = tonumber(value)
    elseif name == 't' then
      b.since = tonumber(value)
    elseif name == 'e' then
      b.period_end = tonumber(value)
    elseif name == 'c' then
      b.was = tonumber(value)
    elseif name == 'f' then
      local units, rate, at = string.match(value, '^([^:]+):([^:]+):(.+)$')
      b.beyond_rate = tonumber(rate)
      b.beyond = math.max(0, tonumber(units) - math.max(0, now - tonumber(at)) * b.beyond_rate)
    else
      local cut = string.find(value, ':', 1, true)
      local units = tonumber(string.sub(value, 1, cut - 1))
      local finish = tonumber(string.sub(value, cut + 1))
      b.held = b.held + units
      if finish <= now then
        b.ended[#b.ended + 1] = name
        b.last_end = math.max(b.last_end, finish)
      else
        b.running = b.running + units
        if name ~= mine then b.others = b.others + units end
      end
    end
  end
end

-- For the time before this call, the old capacity applies; in a region, the smaller of old and new.
local function change(b)
  if b.was == b.capacity then return end
  if not b.regional then
    b.least = b.was
    b.least_rate = b.rate * b.was / b.capacity
  elseif b.this_end then
    b.level = b.level + b.capacity - b.was
  else
    b.least = math.min(b.was, b.capacity)
    b.least_rate = b.rate * b.least / math.max(b.capacity, 0.000001)
  end
end

-- Limit the level to the capacity that held units leave. If held units exceed the capacity, the
-- level falls to zero, but not below; in a region, it may fall below.
local function within(b, level, room)
  if not b.regional then room = math.max(room, math.min(level, 0)) end
  return math.min(level, room)
end

-- Return the units that refill from the time `from` until now.
local function gained(b, from)
  local left = math.max(0, now - from)
  local units = math.min(left, b.grown) * b.least_rate
  left = math.max(0, left - b.grown)
  for capacity, seconds in string.gmatch(b.former, '([^:]+):([^,]+),') do
    local lasted = math.min(left, tonumber(seconds))
    units = units + lasted * math.min(b.least_rate, tonumber(capacity) / b.window)
    left = left - lasted
  end
  return units + left * b.least_rate
end

-- Refill up to the capacity that held units leave. After held units expire, more capacity is left.
local function refill(b)
  local unbounded = b.level + gained(b, b.since)
  b.level = within(b, unbounded, b.least - b.held)
  if #b.ended > 0 then
    local since = b.level + gained(b, b.last_end)
    b.level = within(b, math.min(unbounded, since), b.least - b.running)
  end
end

-- Change the level by as much as the capacity, so that used units stay used. Units that are given
-- back were not used.
local function resize(b)
  if b.regional or b.was == b.capacity then return end
  b.level = within(b, b.level + b.back, b.was - b.others - b.kept)
  b.back = 0
  local moved = b.level + b.capacity - b.was - b.beyond
  b.level = math.max(moved, math.min(b.level, 0))
  b.beyond = b.level - moved
  b.beyond_rate = math.max(b.rate * b.was / b.capacity, b.rate)
end

local function begin_period(b)
  local begins = now >= b.period_end
  if begins then b.period_end = now < b.this_end and b.this_end or b.next_end end
  -- A worker whose clock is very late sends ends that are past.
  if b.period_end <= now then
    local length = b.next_end - b.this_end
    b.period_end = b.period_end + (math.floor((now - b.period_end) / length) + 1) * length
  end
  -- A grant is for one period. A worker with a wrong clock may send the grant of another period.
  if b.regional and b.period_end ~= b.this_end then b.capacity = 0 end
  if not begins then return end
  b.level, b.was, b.least, b.held = b.capacity - b.running, b.capacity, b.capacity, b.running
  b.beyond = 0
end

for i, key in ipairs(KEYS) do
  local at = 3 + (i - 1) * 11
  local b = {
    capacity = tonumber(ARGV[at]), rate = 0, lasts = lease,
    amount = tonumber(ARGV[at + 2]), want = tonumber(ARGV[at + 3]),
    kept = tonumber(ARGV[at + 4]), back = tonumber(ARGV[at + 5]),
    holds = ARGV[at + 6] == '1', watched = ARGV[at + 7] == '1',
    start = tonumber(ARGV[at + 8]), grown = tonumber(ARGV[at + 9]), former = ARGV[at + 10],
    ended = {},
  }
  b.regional = b.start >= 0
  local kind = ARGV[at + 1]
  local cut = string.find(kind, ':', 1, true)
  b.window = not cut and tonumber(kind)
  if kind ~= '0' and not cut then b.rate = b.capacity / b.window end
  read(key, b)
  if kind == '0' then
    b.level = b.capacity - b.running
  else
    if cut then
      b.this_end = tonumber(string.sub(kind, 1, cut - 1))
      b.next_end = tonumber(string.sub(kind, cut + 1))
      begin_period(b)
      change(b)
      b.lasts = b.period_end - now + lease
    else
      change(b)
      -- While a region's share rises, a used bucket lags behind a bucket that nobody used.
      b.lasts = tonumber(kind) * (b.regional and 2 or 1) + lease
    end
    if b.regional and not cut and b.since < now - b.grown then
      b.least = math.min(b.least, b.start)
    end
    refill(b)
    resize(b)
  end
  -- Units that are given back first reduce the excess over a lowered limit.
  local unused = math.min(b.back, b.beyond)
  b.beyond = b.beyond - unused
  local level = b.level + b.back - unused
  if kind == '0' then
    b.level = math.min(level, b.capacity - b.others - b.kept)
  else
    b.level = within(b, level, b.capacity - b.others - b.kept)
  end
  b.over = b.amount > b.level + 0.000001
  if b.over and not b.watched then allowed = 0 end
  buckets[i] = b
end

local answer = { allowed }
for i, key in ipairs(KEYS) do
  local b = buckets[i]
  local granted, holding = 0, b.kept
  if b.over and b.watched then
    granted = -1
  elseif allowed == 1 then
    b.level = b.level - b.amount
    granted = math.max(0, math.min(b.want, math.floor(b.level)))
    b.level = b.level - granted
    holding = b.kept + granted
    if b.holds then holding = holding + b.amount end
  end
  local fields = { 'l', string.format('%.17g', b.level), 't', string.format('%.17g', now) }
  for _, name in ipairs(b.ended) do redis.call('HDEL', key, name) end
  if holding > 0 then
    fields[#fields + 1] = mine
    fields[#fields + 1] = string.format('%d:%.17g', holding, now + lease)
  else
    redis.call('HDEL', key, mine)
  end
  if b.beyond > 0 then
    fields[#fields + 1] = 'f'
    fields[#fields + 1] = string.format('%.17g:%.17g:%.17g', b.beyond, b.beyond_rate, now)
  elseif b.beyond_rate then
    redis.call('HDEL', key, 'f')
  end
  if b.period_end > 0 then
    fields[#fields + 1] = 'e'
    fields[#fields + 1] = string.format('%.17g', b.period_end)
  end
  fields[#fields + 1] = 'c'
  fields[#fields + 1] = string.format('%.17g', b.capacity)
  redis.call('HSET', key, unpack(fields))
  -- When the key expires, the bucket is full and nothing is held, as in a new bucket.
  redis.call('PEXPIRE', key, math.ceil(b.lasts * 1000))
  answer[#answer + 1] = granted
  answer[#answer + 1] = string.format('%.6f', b.level)
  answer[#answer + 1] = string.format('%.3f', math.max(0, b.period_end - now))
end
return answer
"""


class BucketRequest(msgspec.Struct, kw_only=True, gc=False):
    """Holds the arguments for one bucket in a call of the script."""

    charge: Charge
    lease: Lease
    want: int = 0
    kept: int = 0
    back: int = 0


def full_request(charge: Charge, lease: Lease, *, waiting: int, now: float) -> BucketRequest:
    """Return a request that takes `charge`, gives `lease` back, and asks for a new lease.

    The new lease includes `waiting` units for other callers that wait for this call.
    """
    lease.requested_rule = charge.rule
    want = waiting + lease.wanted(charge.amount, now) + lease.overdrawn
    kept = lease.keep_reserved(now)
    return BucketRequest(charge=charge, lease=lease, want=want, kept=kept, back=lease.release(now))


def renewal(charge: Charge, lease: Lease, now: float) -> BucketRequest:
    """Return a request that charges nothing and adds units to `lease` in advance."""
    lease.renew_below = 0
    usable = lease.usable(now)
    kept = usable + lease.keep_reserved(now)
    want = max(0, lease.wanted(0, now) - usable) + lease.overdrawn
    nothing = Charge(rule=charge.rule, bucket=charge.bucket, amount=0)
    return BucketRequest(charge=nothing, lease=lease, want=want, kept=kept)


def returning(bucket: str, lease: Lease, now: float) -> BucketRequest:
    """Return a request that charges nothing and gives back the unreserved units of `lease`."""
    nothing = Charge(rule=lease.rule, bucket=bucket, amount=0)
    return BucketRequest(
        charge=nothing, lease=lease, kept=lease.keep_reserved(now), back=lease.release(now)
    )


def script_arguments(
    requests: Sequence[BucketRequest], *, holder: str, wall: float
) -> list[str | int | float]:
    """Return the script's arguments; `wall` is in seconds since the epoch."""
    arguments: list[str | int | float] = [holder, LEASE]
    for request in requests:
        rule = request.lease.rule
        arguments += [rule.capacity, _refill(rule, wall), request.charge.amount]
        arguments += [request.want, request.kept, request.back]
        arguments += [int(request.charge.is_reserved), int(rule.shadow)]
        if isinstance(rule, RegionalRule):
            arguments += [rule.unknown_level, min(rule.grown_for, _FOR_EVER), _former(rule)]
        else:
            arguments += [-1, 0, ""]
    return arguments


def _former(rule: RegionalRule) -> str:
    """Return the script's argument of former capacities."""
    return "".join(
        f"{share * rule.full_limit:.9g}:{min(seconds, _FOR_EVER):.6f},"
        for share, seconds in reversed(rule.former_shares)
    )


def _refill(rule: Rule, wall: float) -> str:
    """Return the script's argument `refill`."""
    if rule.period:
        this_end, next_end = PERIODS[rule.period].ends(wall)
        return f"{this_end:.0f}:{next_end:.0f}"
    return str(rule.window) if rule.window > 0 else "0"
