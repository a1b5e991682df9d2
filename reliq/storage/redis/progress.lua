-- Keep what the handler of a running job reports, until its record goes.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] id
-- ARGV[3] nonce
-- ARGV[4] token
-- ARGV[5] data
-- Returns "1", or "0" when the lease is lost
local id = ARGV[2]
local r = decode(redis.call('HGET', tag .. ':jobs', id))
if not r or r[NONCE] ~= ARGV[3] or r[TOKEN] ~= tonumber(ARGV[4]) or not may(MAY.extend, r[STATE]) or not is_live(r) then
  return '0'
end
redis.call('HSET', tag .. ':progress', id, ARGV[5])
if has(r[FLAGS], SIDE) == 0 then
  r[FLAGS] = bor(r[FLAGS], SIDE)
  save(id, r)
end
note('g', id)
finish()
return '1'
