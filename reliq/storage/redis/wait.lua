-- Join those who wait for the end of a job, or leave them.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] mode     "join" | "leave"
-- ARGV[3] id
-- ARGV[4] waiter   reply token
-- ARGV[5] wait_ms  how long a joining caller waits
-- ARGV[6] nonce    of the incarnation to join, or ''
-- Returns "1" when the caller waits now, "0" when it need not: the job ended, is gone, or it left
local mode, id, waiter, nonce = ARGV[2], ARGV[3], ARGV[4], ARGV[6]
local entry = redis.call('HGET', tag .. ':waiters', id)
local kept = {}
for i, value in ipairs(entry and cmsgpack.unpack(entry) or {}) do kept[i] = value end
for i = #kept - 1, 1, -2 do
  if kept[i] == waiter or kept[i + 1] <= now then
    table.remove(kept, i)
    table.remove(kept, i)
  end
end
local answer = '0'
if mode == 'join' then
  local r = decode(redis.call('HGET', tag .. ':jobs', id))
  if r and is_live(r) and not may('CD', r[STATE]) and (nonce == '' or nonce == r[NONCE]) then
    -- The deadline only tells when nobody can be waiting any more, should the caller not say that it left.
    kept[#kept + 1], kept[#kept + 2] = waiter, now + tonumber(ARGV[5])
    answer = '1'
    if has(r[FLAGS], WAITED) == 0 then
      r[FLAGS] = bor(r[FLAGS], WAITED)
      redis.call('HSET', tag .. ':jobs', id, encode(r))
    end
  end
end
if #kept > 0 then redis.call('HSET', tag .. ':waiters', id, cmsgpack.pack(kept))
elseif entry then redis.call('HDEL', tag .. ':waiters', id) end
if mode == 'leave' then
  redis.call('DEL', tag .. ':reply:' .. waiter)
  local r = #kept == 0 and decode(redis.call('HGET', tag .. ':jobs', id))
  if r and has(r[FLAGS], WAITED) ~= 0 then
    r[FLAGS] = band(r[FLAGS], 255 - WAITED)
    redis.call('HSET', tag .. ':jobs', id, encode(r))
  end
end
return answer
