-- include: ends
-- Set what all users of a queue are held to.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] limits    packed: rate, rate_ms, max_concurrency, max_length, group_concurrency; 0 = no limit
-- ARGV[3] only_new  "1" to leave limits that somebody set as they are
-- Returns the packed limits that hold now
local old = redis.call('HGET', tag .. ':meta', 'limits')
if old and ARGV[3] == '1' then return old end
local rate, rate_ms, concurrency, length, width = struct.unpack('<I6I6I6I6I6', ARGV[2])
redis.call('HSET', tag .. ':meta', 'limits', ARGV[2])
if rate == 0 then redis.call('HDEL', tag .. ':meta', 'full_at') else ends().side().limits() end
-- Lines keep jobs out as far as the widest head reached.
local widest = tonumber(redis.call('HGET', tag .. ':meta', 'widest') or 1)
if width > widest then redis.call('HSET', tag .. ':meta', 'widest', text(width)) end
local found = (concurrency > 0 and SLOTS + LIMITED or rate > 0 and LIMITED or 0) + (length > 0 and BOUNDED or 0)
switches = bor(band(switches, 255 - SLOTS - LIMITED - BOUNDED), found)
if old and queued > redis.call('ZCARD', tag .. ':blocked') then
  local before, before_ms, slots = struct.unpack('<I6I6I6', old)
  local is_faster = before > 0 and (rate == 0 or rate / rate_ms > before / before_ms)
  must_ring = is_faster or slots > 0 and (concurrency == 0 or concurrency > slots)
end
finish()
return ARGV[2]
