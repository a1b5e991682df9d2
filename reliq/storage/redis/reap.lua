-- include: ends recovery registry sweep removal vacancy
-- One bounded step of upkeep. Promotes due jobs always; the rest at most twice per interval.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] interval  ms between two reaps
-- ARGV[3] limit     the most ids of one kind to touch
-- Returns "1" when more is to be done at once, ms until the next due job or later tick or '', the clock, how many ticks
--         are due and for each: name, spec, when; then per change: event, id
local interval, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local has_more, changes = false, {}

local ids = redis.call('ZRANGEBYSCORE', tag .. ':scheduled', '-inf', now, 'LIMIT', 0, limit)
if #ids > 0 then
  local raws = redis.call('HMGET', tag .. ':jobs', unpack(ids))
  for i, id in ipairs(ids) do
    local r = decode(raws[i])
    if r and may(MAY.promote, r[STATE]) and r[EPOCH] == epoch then
      count(r[STATE], -1)
      if r[FLAGS] < SIDE then place(backs, id, r) else ends().side().enter(backs, id, r) end
      save(id, r)
      note('q', id)
    end
  end
  redis.call('ZREM', tag .. ':scheduled', unpack(ids))
  has_more = #ids == limit
end

if has(switches, CASCADING) ~= 0 then counts.cascade = ends().side().links().carry_on end
local state = redis.call('HMGET', tag .. ':meta', 'last_reap', 'unfinished')
local last = tonumber(state[1] or 0)
-- A clock that steps back must not stop the upkeep.
if now - last >= interval / 2 or now < last or state[2] then
  -- Of a queue that was empty until now nothing is known: nobody had to look.
  local is_late = last > 0 and now - last > 2 * interval and not state[2]
  local unfinished = ends().expire(limit, changes) == limit
  ends().tidy(2 * limit)
  local workers = redis.call('ZRANGE', tag .. ':workers', 0, -1, 'WITHSCORES')
  for i = 1, #workers, 2 do
    local worker, deadline = workers[i], tonumber(workers[i + 1])
    local processing = tag .. ':processing:' .. worker
    local entry = redis.call('HGET', tag .. ':runners', worker) or '1:15000'
    local ttl, graced = string.match(entry, ':(%d+)(!?)')
    if is_late and deadline > last and graced == '' then
      -- Nobody looked for a while: the server or this machine stood still, and so may the worker have.
      redis.call('HSET', tag .. ':runners', worker, entry .. '!')
      if deadline <= now then redis.call('ZADD', tag .. ':workers', now + ttl, worker) end
      local leases = redis.call('ZRANGEBYSCORE', processing, '(' .. last, now, 'LIMIT', 0, limit)
      for n = 1, #leases do redis.call('ZADD', processing, now + ttl, leases[n]) end
    elseif deadline <= now then
      for _, change in ipairs(recovery().recover_all(worker, limit)) do changes[#changes + 1] = change end
      if redis.call('EXISTS', processing) == 0 then registry().unregister(worker) else unfinished = true end
    else
      local leases = redis.call('ZRANGEBYSCORE', processing, '-inf', now, 'LIMIT', 0, limit)
      for _, change in ipairs(recovery().recover(worker, leases)) do changes[#changes + 1] = change end
      unfinished = unfinished or #leases == limit
    end
    if #changes >= 2 * limit then
      unfinished = unfinished or i + 2 < #workers
      break
    end
  end
  if has(switches, DELETING) ~= 0 then unfinished = not removal().step(limit) or unfinished
  else unfinished = ends().clear_purged(limit) or unfinished end
  sweep().sweep(1)
  redis.call('HSET', tag .. ':meta', 'last_reap', string.format('%.0f', now))
  if unfinished then redis.call('HSET', tag .. ':meta', 'unfinished', 1)
  elseif state[2] then redis.call('HDEL', tag .. ':meta', 'unfinished') end
  has_more = has_more or unfinished
end
finish()
local first = redis.call('ZRANGE', tag .. ':scheduled', 0, 0, 'WITHSCORES')
local tick = redis.call('ZRANGEBYSCORE', tag .. ':ticks', '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local next_due = math.min(tonumber(first[2] or '+inf'), tonumber(tick[2] or '+inf'))
local answers = {
  (has_more or has(switches, CASCADING) ~= 0) and '1' or '0',
  next_due < math.huge and text(math.max(0, next_due - now)) or '', text(now), '0',
}
local names = redis.call('ZRANGEBYSCORE', tag .. ':ticks', '-inf', now, 'WITHSCORES', 'LIMIT', 0, MAX_TICKS)
answers[4] = text(#names / 2)
for i = 1, #names, 2 do
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = names[i], redis.call('HGET', tag .. ':schedules', names[i]) or '', names[i + 1]
end
for i = 1, #changes do answers[#answers + 1] = changes[i] end
vacancy().clear()
return answers
