"""The Lua script that takes charges from buckets in Redis, leases to workers and takes leases back.

A bucket is a hash: `l` its level, `t` the server's time of that level, `e` the end of the period
that a quota's level is of, `c` the capacity at that time, `f` what was used beyond a capacity that
was lowered, as `<units>:<rate of refill>:<time>`, and `h:<holder>` what a worker holds, as
`<units>:<end>`: on lease, or reserved for work under way. What is held counts as being in the
bucket until it was reported as spent: level and holds together never exceed the capacity. Without
that, a full bucket beside a full lease would admit both at once, more than the limit allows.

A rule's `refill` says of which kind its bucket is: the seconds in which it fills; the ends of this
period and the next, as `<time>:<time>`, for a quota; `0` where units come back only from whoever
holds them, with whose last hold they end.

A limit that was changed keeps what was used of it: the level moves by as much as the capacity, but
not below zero. What is cut off there is used again where the limit is raised once more: workers
that hear of a change one after another must not make room by turns.

A region's part of a limit changes, too. What is refilled before a larger one is noticed is refilled
as before, and a larger bucket is not a fuller one: all regions together stay within the limit. What
a region is granted of a quota is added to what it has left.

Keys: the buckets. Arguments: the holder; the seconds of a hold; then for each bucket its capacity,
its refill, the `amount` to take now, the units it would like on lease (`want`), the units the
holder keeps of what it holds (`kept`), and those it gives back (`back`), whether the amount is held
(1) or spent (0), whether the rule is only watched (1): then it refuses nothing, and is not charged
what it would have refused; and, where the capacity is a region's part, the level of a bucket that
is not there (-1: the capacity is all there is), and the seconds since the part grew: it may have
been smaller while others had the rest, so one that was left alone for longer is no fuller either.

Answers 1 or 0 (allowed), then for each bucket the units leased (-1 where a watched rule would have
refused), the level, and the seconds until a quota's period ends.
"""

from collections.abc import Sequence

import msgspec

from gateway.rate_limit.base import Charge
from gateway.rate_limit.bucket import period_ends
from gateway.rate_limit.lease import LEASE, Lease
from gateway.types import RegionalRule, Rule

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

-- Of two capacities, the smaller holds for the time until now.
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

-- Leave room for what is held. More than a lowered limit is nothing that must be refilled first.
local function within(b, level, room)
  if not b.regional then room = math.max(room, math.min(level, 0)) end
  return math.min(level, room)
end

-- Refill under the holds of the time that passed; under fewer since the last of them ended.
local function refill(b)
  local unbounded = b.level + math.max(0, now - b.since) * b.least_rate
  b.level = within(b, unbounded, b.least - b.held)
  if #b.ended > 0 then
    local since = b.level + (now - b.last_end) * b.least_rate
    b.level = within(b, math.min(unbounded, since), b.least - b.running)
  end
end

-- After the refill: what was used stays used; what is given back was not.
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
  -- What a region was granted is of one period. Whoever's clock is early or late has the wrong one.
  if b.regional and b.period_end ~= b.this_end then b.capacity = 0 end
  if not begins then return end
  b.level, b.was, b.least, b.held = b.capacity - b.running, b.capacity, b.capacity, b.running
  b.beyond = 0
end

for i, key in ipairs(KEYS) do
  local at = 3 + (i - 1) * 10
  local b = {
    capacity = tonumber(ARGV[at]), rate = 0, lasts = lease,
    amount = tonumber(ARGV[at + 2]), want = tonumber(ARGV[at + 3]),
    kept = tonumber(ARGV[at + 4]), back = tonumber(ARGV[at + 5]),
    holds = ARGV[at + 6] == '1', watched = ARGV[at + 7] == '1',
    start = tonumber(ARGV[at + 8]), grown = tonumber(ARGV[at + 9]), ended = {},
  }
  b.regional = b.start >= 0
  local kind = ARGV[at + 1]
  local cut = string.find(kind, ':', 1, true)
  if kind ~= '0' and not cut then b.rate = b.capacity / tonumber(kind) end
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
      b.lasts = tonumber(kind) + lease
    end
    if b.regional and not cut and b.since < now - b.grown then
      b.least = math.min(b.least, b.start)
    end
    refill(b)
    resize(b)
  end
  -- What was used beyond a lowered limit is less by what was not used after all.
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
  -- By then the bucket is full and every hold has ended: as if it had never been.
  redis.call('PEXPIRE', key, math.ceil(b.lasts * 1000))
  answer[#answer + 1] = granted
  answer[#answer + 1] = string.format('%.6f', b.level)
  answer[#answer + 1] = string.format('%.3f', math.max(0, b.period_end - now))
end
return answer
"""


class BucketRequest(msgspec.Struct, kw_only=True, gc=False):
    """One bucket's part in a call of the script."""

    charge: Charge
    lease: Lease
    want: int = 0
    kept: int = 0
    back: int = 0


def returned(bucket: str, lease: Lease, now: float) -> BucketRequest:
    """Return the part that takes nothing, and gives back what is not reserved of `lease`."""
    nothing = Charge(rule=lease.rule, bucket=bucket, amount=0)
    return BucketRequest(
        charge=nothing, lease=lease, kept=lease.keep(now), back=lease.surrender(now)
    )


def script_arguments(
    parts: Sequence[BucketRequest], *, holder: str, wall: float
) -> list[str | int | float]:
    """Return the arguments of a call; `wall` (seconds since the epoch) only says which months."""
    arguments: list[str | int | float] = [holder, LEASE]
    for part in parts:
        rule = part.lease.rule
        arguments += [rule.capacity, _refill(rule, wall), part.charge.amount]
        arguments += [part.want, part.kept, part.back]
        arguments += [int(part.charge.hold), int(rule.shadow)]
        if isinstance(rule, RegionalRule):
            arguments += [rule.unknown_level, min(rule.grown_for, _FOR_EVER)]
        else:
            arguments += [-1, 0]
    return arguments


def _refill(rule: Rule, wall: float) -> str:
    """Return what brings units back; see the script."""
    if rule.period:
        this_end, next_end = period_ends(wall)
        return f"{this_end:.0f}:{next_end:.0f}"
    return str(rule.window) if rule.window > 0 else "0"
