-- Make every job that is not processing absent, in constant time: the epoch rises, the indexes go, reaps
-- carry the records out.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- Returns how many jobs that were
local q, w, s, p, r, c, d = struct.unpack(COUNTS, core, COUNTS_AT)
counts = {Q = -q, W = -w, S = -s, R = -r, C = -c, D = -d}
epoch, prios = (epoch + 1) % 65536, 0
redis.call('HSET', tag .. ':meta', 'purging', 0)
redis.call('UNLINK', tag .. ':pending', tag .. ':scheduled', tag .. ':dead', tag .. ':expiry')
for prio = 1, 9 do redis.call('UNLINK', pending_key(prio)) end
note('z', '')
finish()
return q + w + s + r + c + d
