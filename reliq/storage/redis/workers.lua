-- The registered workers of a queue.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- Returns per worker: key, expiry ms, "runners:ttl", leases held
local answers = {}
local workers = redis.call('ZRANGE', tag .. ':workers', 0, -1, 'WITHSCORES')
for i = 1, #workers, 2 do
  local worker, n = workers[i], #answers
  answers[n + 1], answers[n + 2] = worker, string.format('%.0f', tonumber(workers[i + 1]))
  answers[n + 3] = redis.call('HGET', tag .. ':runners', worker) or '1:0'
  answers[n + 4] = tostring(redis.call('ZCARD', tag .. ':processing:' .. worker))
end
return answers
