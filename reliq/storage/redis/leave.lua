-- include: ends recovery registry vacancy
-- Remove a worker and recover what it still holds, up to `limit` leases.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] worker
-- ARGV[3] limit
-- Returns how many leases were recovered
local worker, limit = ARGV[2], tonumber(ARGV[3])
local _, recovered = recovery().recover_all(worker, limit)
if redis.call('EXISTS', tag .. ':processing:' .. worker) == 0 then registry().unregister(worker) end
finish()
vacancy().clear()
return recovered
