-- include: ends
-- Dead letters back to the end of the queue: attempts 0, token kept, the same incarnation.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] limit  the oldest ones to take when no ids follow
-- ARGV[3..] ids
-- Returns the ids that were revived
local ids = {}
for i = 3, #ARGV do ids[#ids + 1] = ARGV[i] end
if #ids == 0 then
  ends().expire(tonumber(ARGV[2]), {})
  ids = redis.call('ZRANGE', tag .. ':dead', 0, tonumber(ARGV[2]) - 1)
end
local revived = {}
for _, id in ipairs(ids) do
  local r = decode(redis.call('HGET', tag .. ':jobs', id))
  if r and is_live(r) and may(MAY.revive, r[STATE]) then
    redis.call('ZREM', tag .. ':dead', id)
    redis.call('ZREM', tag .. ':expiry', id)
    count('D', -1)
    r[ATTEMPTS], r[FLAGS] = 0, band(r[FLAGS], LASTING)
    if r[FLAGS] < SIDE then place(backs, id, r) else ends().side().revive(id, r) end
    redis.call('HSET', tag .. ':jobs', id, encode(r))
    note('q', id)
    revived[#revived + 1] = id
  end
end
finish()
return revived
