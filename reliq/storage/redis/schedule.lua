-- Keep, move or remove a schedule.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] verb  "put" | "new", as put but only where there is none | "move" | "remove"
-- ARGV[3] name
-- ARGV[4] next  epoch ms of its next tick
-- ARGV[5] spec of one that is put; of one that is moved: when its next tick was
-- Returns "1", or "0" when nothing changed
local verb, name, next_ms = ARGV[2], ARGV[3], tonumber(ARGV[4])
local ticks = tag .. ':ticks'
local was = redis.call('ZSCORE', ticks, name)
if verb == 'remove' then
  redis.call('HDEL', tag .. ':schedules', name)
  return tostring(redis.call('ZREM', ticks, name))
elseif verb == 'move' then
  if not was or tonumber(was) ~= tonumber(ARGV[5]) then return '0' end
  redis.call('ZADD', ticks, next_ms, name)
  return '1'
end
if was and verb == 'new' then return '0' end
redis.call('HSET', tag .. ':schedules', name, ARGV[5])
redis.call('ZADD', ticks, next_ms, name)
local first = redis.call('ZRANGE', ticks, 0, 0, 'WITHSCORES')
local job = redis.call('ZRANGE', tag .. ':scheduled', 0, 0, 'WITHSCORES')
if next_ms <= tonumber(first[2]) and next_ms <= tonumber(job[2] or '+inf') then ring(':due-wake') end
return '1'
