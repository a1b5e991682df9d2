-- include: ends recovery registry
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
-- The last one of a queue that nothing was enqueued to since it was deleted, or ever, leaves nothing behind.
local meta = tag .. ':meta'
if back == 0 and switches == 0 and not is_listened and redis.call('EXISTS', tag .. ':workers') == 0
  and redis.call('HEXISTS', meta, 'limits') == 0 then
  redis.call('UNLINK', meta, tag .. ':wake', tag .. ':due-wake')
end
return recovered
