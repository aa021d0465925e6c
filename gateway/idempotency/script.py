"""Holds the Lua script that claims, renews and finishes idempotency keys in the state Redis.

A tenant has three keys in one slot: a hash with a record for each idempotency key, a sorted set of
their names by the time they were first seen (ms), and the bytes of all. A record is

    fingerprint (16 bytes) | first seen (13 digits, ms) | lease ends (13 digits, ms) | owner (16)
    | answer (the rest; empty while there is none)

The oldest are removed when they are too old, too many, or too large together. All three keys
expire when the tenant has used none for so long.
"""

from typing import Final

PREFIX: Final = "sg:idem:"
"""Begins the names of all keys; the tenant follows, as their hash tag."""
HEAD_BYTES: Final = 58
"""The bytes of a record before its answer."""
OVERHEAD_BYTES: Final = 250
"""What a record is counted for beside its own bytes: about what Redis needs to find it."""

SCRIPT: Final = f"""
local HEAD, OVERHEAD = {HEAD_BYTES}, {OVERHEAD_BYTES}
local records, index, total = KEYS[1], KEYS[2], KEYS[3]
local action, name, owner = ARGV[1], ARGV[2], ARGV[3]
local lease, ttl, most, most_bytes = \
tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function write(print, first, till, holder, answer)
  local old = redis.call('HSTRLEN', records, name)
  local record = print .. string.format('%013d%013d', first, till) .. holder .. answer
  redis.call('HSET', records, name, record)
  if old == 0 then
    redis.call('ZADD', index, first, name)
    old = -OVERHEAD
  end
  redis.call('INCRBY', total, #record - old)
end

local function forget(one)
  local size = redis.call('HSTRLEN', records, one)
  redis.call('ZREM', index, one)
  if size > 0 then
    redis.call('HDEL', records, one)
    redis.call('DECRBY', total, size + OVERHEAD)
  end
end

local function make_room(count, bytes)
  for _ = 1, 100 do
    local oldest = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
    if not oldest[1] or oldest[1] == name then return end
    local used = tonumber(redis.call('GET', total) or '0')
    local held = redis.call('ZCARD', index)
    if oldest[2] + ttl > now and held + count <= most and used + bytes <= most_bytes then
      return
    end
    forget(oldest[1])
  end
end

local record = redis.call('HGET', records, name)
local print, first, till, holder, answer
if record then
  print, first = string.sub(record, 1, 16), tonumber(string.sub(record, 17, 29))
  till, holder = tonumber(string.sub(record, 30, 42)), string.sub(record, 43, HEAD)
  answer = string.sub(record, HEAD + 1)
  if first + ttl <= now then
    forget(name)
    record = false
  end
end

if action == 'claim' then
  if record and print ~= ARGV[8] then return {{'other'}} end
  if record and answer ~= '' then return {{'done', first, answer}} end
  if record and till > now then return {{'running', till - now}} end
  if not record then
    first = now
    make_room(1, HEAD + OVERHEAD)
  end
  write(ARGV[8], first, now + lease, owner, '')
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl + 60000) end
  return {{'owned', first}}
end

if not record or holder ~= owner then return {{'lost'}} end
if action == 'renew' then
  write(print, first, now + lease, owner, answer)
  return {{'owned', first}}
end
local stored = ARGV[8]
if stored ~= '' then
  make_room(0, #stored)
  if tonumber(redis.call('GET', total) or '0') + #stored > most_bytes then stored = '' end
end
write(print, first, 0, owner, stored)
return {{'owned', first}}
"""
"""Keys: records, index, total. Arguments: what to do (`claim`, `renew` or `finish`), the name of
the idempotency key, the owner, lease and lifetime (ms), the most keys and bytes; then the
fingerprint of a claim, or the answer to keep."""
