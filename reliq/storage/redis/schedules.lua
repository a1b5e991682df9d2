-- All schedules of a queue.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- Returns per schedule: name, spec, epoch ms of its next tick
local answers = {}
local ticks = redis.call('ZRANGE', tag .. ':ticks', 0, -1, 'WITHSCORES')
for i = 1, #ticks, 2 do
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = ticks[i], redis.call('HGET', tag .. ':schedules', ticks[i]) or '', ticks[i + 1]
end
return answers
