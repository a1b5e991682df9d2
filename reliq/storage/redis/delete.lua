-- include: ends registry removal
-- A step of removing a queue with everything in it.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] first  "1" to begin, "0" to go on
-- ARGV[3] limit  the most ids to touch
-- Returns how many jobs the queue had (0 after the first step), and "1" when it is done
local jobs = ARGV[2] == '1' and removal().begin() or 0
local is_done = removal().step(tonumber(ARGV[3]))
if has(switches, CASCADING) ~= 0 then counts.cascade = ends().side().links().carry_on end
finish()
if is_done and redis.call('EXISTS', tag .. ':cascades') == 1 then is_done = false end
-- Jobs, schedules or limits that came since the first step are of a new queue.
local is_new = redis.call('EXISTS', tag .. ':jobs', tag .. ':ticks') > 0 or redis.call('HEXISTS', tag .. ':meta', 'limits') == 1
if is_done and not is_new then
  for prio = 0, 9 do redis.call('UNLINK', pending_key(prio)) end
  for _, name in ipairs({
    'messages', 'results', 'errors', 'waiters', 'side', 'progress', 'open', 'pins', 'blocked', 'waiting', 'scheduled', 'expiry', 'dead',
    'workers', 'runners', 'wake', 'due-wake', 'meta', 'cascades',
  }) do
    redis.call('UNLINK', tag .. ':' .. name)
  end
  -- Repeated calls find their traces for a while; the queue's next enqueue keeps them.
  for _, name in ipairs({'gone', 'gone:order'}) do redis.call('PEXPIRE', tag .. ':' .. name, 60000) end
end
return {jobs, is_done and '1' or '0'}
