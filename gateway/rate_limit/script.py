"""The Lua script that takes charges from buckets in Redis, leases to workers and takes leases back.

A bucket is a hash: `l` its level, `t` the server's time of that level, and `h:<holder>` what a
worker holds on lease, as `<units>:<end>`. What is on lease counts as being in the bucket until it
was reported as spent: level and leases together never exceed the capacity. Without that, a full
bucket beside a full lease would admit both at once, more than the limit allows.

Keys: the buckets. Arguments: the holder; the seconds of a lease; then for each bucket its capacity,
its window, the `amount` to take now, the units it would like on lease (`want`), the units the
holder has left of its old lease (`kept`), and those it gives back (`back`).

Answers 1 or 0 (allowed), then for each bucket the units leased and the level.
"""

TAKE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local mine = 'h:' .. ARGV[1]
local lease = tonumber(ARGV[2])
local buckets = {}
local allowed = 1

for i, key in ipairs(KEYS) do
  local at = 3 + (i - 1) * 6
  local b = {
    capacity = tonumber(ARGV[at]), window = tonumber(ARGV[at + 1]),
    amount = tonumber(ARGV[at + 2]), want = tonumber(ARGV[at + 3]),
    kept = tonumber(ARGV[at + 4]), back = tonumber(ARGV[at + 5]),
    ended = {},
  }
  local rate = b.capacity / b.window
  local level, since = b.capacity, now
  local held, running, others, last_end = 0, 0, 0, 0
  local fields = redis.call('HGETALL', key)
  for f = 1, #fields, 2 do
    local name, value = fields[f], fields[f + 1]
    if name == 'l' then
      level = tonumber(value)
    elseif name == 't' then
      since = tonumber(value)
    else
      local cut = string.find(value, ':', 1, true)
      local units = tonumber(string.sub(value, 1, cut - 1))
      local finish = tonumber(string.sub(value, cut + 1))
      held = held + units
      if finish <= now then
        b.ended[#b.ended + 1] = name
        last_end = math.max(last_end, finish)
      else
        running = running + units
        if name ~= mine then others = others + units end
      end
    end
  end

  -- Refill under the leases of the time that passed; under fewer since the last of them ended.
  local unbounded = level + math.max(0, now - since) * rate
  level = math.min(unbounded, b.capacity - held)
  if #b.ended > 0 then
    level = math.min(unbounded, b.capacity - running, level + (now - last_end) * rate)
  end
  b.level = math.min(level + b.back, b.capacity - others - b.kept)
  if b.amount > b.level + 0.000001 then allowed = 0 end
  buckets[i] = b
end

local answer = { allowed }
for i, key in ipairs(KEYS) do
  local b = buckets[i]
  local granted = 0
  if allowed == 1 then
    b.level = b.level - b.amount
    granted = math.max(0, math.min(b.want, math.floor(b.level)))
    b.level = b.level - granted
  end
  local fields = { 'l', string.format('%.17g', b.level), 't', string.format('%.17g', now) }
  for _, name in ipairs(b.ended) do redis.call('HDEL', key, name) end
  if b.kept + granted > 0 then
    fields[5] = mine
    fields[6] = string.format('%d:%.17g', b.kept + granted, now + lease)
  else
    redis.call('HDEL', key, mine)
  end
  redis.call('HSET', key, unpack(fields))
  -- By then the bucket is full and every lease has ended: as if it had never been.
  redis.call('PEXPIRE', key, math.ceil((b.window + lease) * 1000))
  answer[#answer + 1] = granted
  answer[#answer + 1] = string.format('%.6f', b.level)
end
return answer
"""
