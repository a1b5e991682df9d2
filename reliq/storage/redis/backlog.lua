-- include: ends
-- How many jobs are left to work off; persistent ones never are.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- Returns their number: the leased ones alone while the queue is paused or its rate limit has no token
local q, w, _, p, r = struct.unpack(COUNTS, core, COUNTS_AT)
local persistent = redis.call('HMGET', tag .. ':meta', 'persistent', 'persistent:leased')
local leased = p - tonumber(persistent[2] or 0)
local is_held = has(switches, PAUSED) ~= 0 or has(switches, LIMITED) ~= 0 and ends().side().limits().token_ms() > 0
if is_held then return text(leased) end
return text(leased + q + w + r - tonumber(persistent[1] or 0))
