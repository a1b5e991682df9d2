-- include: ends
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
if not may(MAY.expire, r[STATE]) then return 'not_terminal' end
if now >= r[UNTIL] then return 'not_found' end
if r[UNTIL] == PINNED and r[STATE] == 'C' then
  -- Its time begins when the last job that waits for it has ended.
  if redis.call('HEXISTS', tag .. ':results', id) == 0 then return 'not_found' end
  local s = ends().side().entry(id) or {}
  s.ttl, r[FLAGS] = ttl, bor(r[FLAGS], SIDE)
  ends().side().keep(id, s)
  save(id, r)
  return 'updated'
end
r[UNTIL] = now + ttl
ended[1], ended[2] = now + ttl, id
save(id, r)
finish()
return 'updated'
