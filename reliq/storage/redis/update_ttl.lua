-- Let a finished job's result, or its dead letter, live `ttl` from now.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] id
-- ARGV[3] ttl  ms
-- Returns "updated" | "not_found" | "not_terminal"
local id, ttl = ARGV[2], tonumber(ARGV[3])
local r = decode(redis.call('HGET', tag .. ':jobs', id))
if not r or not is_live(r) then return 'not_found' end
if r[STATE] == 'C' then
  if now >= r[STAMP] + r[RESULT_TTL] then return 'not_found' end
  r[RESULT_TTL] = now + ttl - r[STAMP]
elseif r[STATE] == 'D' then
  r[DEAD_TTL] = now + ttl - r[STAMP]
else
  return 'not_terminal'
end
ended[1], ended[2] = now + ttl, id
save(id, r)
finish()
return 'updated'
