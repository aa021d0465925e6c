"""Defines the Lua scripts with which `Control` changes several keys at once."""

# Publishes a document, unless another document was published after the author read the active
# document.
PUBLISH = """
local current = tonumber(redis.call('GET', KEYS[1]) or '0')
if current ~= tonumber(ARGV[1]) then return current end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[3])
redis.call('LPUSH', KEYS[3], ARGV[3])
redis.call('LTRIM', KEYS[3], 0, ARGV[4])
redis.call('PUBLISH', ARGV[5], 'config')
return -1
"""
# Restores state that Redis has lost. Newer state in Redis is not replaced.
RESTORE = """
local restored = 0
if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[1]) then
  redis.call('DEL', KEYS[3])
  local last = 4 + tonumber(ARGV[3])
  redis.call('RPUSH', KEYS[3], unpack(ARGV, 5, last))
  redis.call('SET', KEYS[2], ARGV[5])
  redis.call('SET', KEYS[1], ARGV[1])
  redis.call('PUBLISH', ARGV[4], 'config')
  restored = 1
end
if tonumber(redis.call('GET', KEYS[5]) or '0') < tonumber(ARGV[2]) then
  redis.call('DEL', KEYS[4])
  for i = 5 + tonumber(ARGV[3]), #ARGV do redis.call('SADD', KEYS[4], ARGV[i]) end
  redis.call('SET', KEYS[5], ARGV[2])
  redis.call('PUBLISH', ARGV[4], 'drains')
  restored = 1
end
return restored
"""
# Starts a new history of purges if the version is below ARGV[1], or if ARGV[4] is still the id of
# the history. If another worker has already started the new history, the script does nothing.
START_PURGE_HISTORY = """
local version = tonumber(redis.call('GET', KEYS[1]) or '0')
if version >= tonumber(ARGV[1]) and redis.call('GET', KEYS[2]) ~= ARGV[4] then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('SET', KEYS[1], string.format('%.0f', math.max(version + 1, tonumber(ARGV[1]))))
redis.call('PUBLISH', ARGV[3], 'epochs')
return 1
"""
# Announces a change. The new version is the time in microseconds: unless its clock was set back, no
# worker has seen the version before, even if Redis has lost the last ones. With KEYS[2], it is also
# stored there, in the field ARGV[3] of a hash.
TOUCH = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local version = math.max(now, tonumber(redis.call('GET', KEYS[1]) or '0') + 1)
version = string.format('%.0f', version)
redis.call('SET', KEYS[1], version)
if KEYS[2] then redis.call('HSET', KEYS[2], ARGV[3], version) end
redis.call('PUBLISH', ARGV[1], ARGV[2])
return version
"""
# Uses the clock of the Redis server, so that the machines' clocks need not agree. From KEYS[3] on,
# the keys are hashes with acknowledgements; those without one of the worker are returned.
HEARTBEAT = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[3] * 60)) do
  redis.call('ZREM', KEYS[1], gone)
  redis.call('HDEL', KEYS[2], gone)
end
local lost = {}
for i = 3, #KEYS do
  if not redis.call('HGET', KEYS[i], ARGV[1]) then table.insert(lost, KEYS[i]) end
end
return lost
"""
LIVE_WORKERS = """
local now = tonumber(redis.call('TIME')[1])
return redis.call('ZRANGEBYSCORE', KEYS[1], now - ARGV[1], '+inf')
"""
