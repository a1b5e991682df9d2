-- Taking a queue's jobs away as a whole: a purge, and the steps of a deletion, which takes the running ones too.

-- All jobs but the running ones are absent from now on; how many they were. The epoch rises, the indexes go, lines of
-- groups are cleaned when they are touched (members up to `purged` are stale unless they run).
local function purge()
  local q, w, s, p, r, c, d = struct.unpack(COUNTS, core, COUNTS_AT)
  counts = {Q = -q, W = -w, S = -s, R = -r, C = -c, D = -d}
  epoch, prios, switches = (epoch + 1) % 65536, 0, band(switches, 255 - BLOCKED)
  if back > 0 then back = back + 1 end
  redis.call('HSET', tag .. ':meta', 'purging', 0, 'purged', text(back))
  redis.call('HDEL', tag .. ':meta', 'persistent')
  redis.call('UNLINK', tag .. ':pending', tag .. ':scheduled', tag .. ':dead', tag .. ':expiry', tag .. ':blocked', tag .. ':waiting')
  for prio = 1, 9 do redis.call('UNLINK', pending_key(prio)) end
  note('z', '')
  return q + w + s + r + c + d, p
end

-- The same for good, with all settings; the running ones are absent from now on too. Their leases are put aside for
-- the steps: those of jobs that are enqueued and claimed meanwhile are not among them, however many these are.
local function begin()
  local purged, running = purge()
  switches = bor(band(switches, CASCADING), DELETING)
  redis.call('HDEL', tag .. ':meta', 'limits', 'full_at')
  redis.call('UNLINK', tag .. ':schedules', tag .. ':ticks')
  for _, worker in ipairs(redis.call('ZRANGE', tag .. ':workers', 0, -1)) do
    local processing = tag .. ':processing:' .. worker
    if redis.call('EXISTS', processing) == 1 then
      local number = text(redis.call('HINCRBY', tag .. ':meta', 'deleted', 1))
      redis.call('RENAME', processing, tag .. ':deleted:' .. number)
      redis.call('RPUSH', tag .. ':deleted', number)
    end
    registry().unregister(worker)
  end
  return purged + running
end

-- Carry out up to `limit` of what `begin` made absent; true when nothing is left of it.
local function step(limit)
  local left = limit
  while left > 0 do
    local number = redis.call('LINDEX', tag .. ':deleted', 0)
    if not number then break end
    local asked = left
    local leases = redis.call('ZPOPMIN', tag .. ':deleted:' .. number, asked)
    left = left - #leases / 2
    for i = 1, #leases, 2 do
      local id = leases[i]
      local r = decode(redis.call('HGET', tag .. ':jobs', id))
      if r and r[STATE] == 'P' and not is_live(r) then ends().drop(id, r, 'p') end
    end
    if #leases / 2 < asked then redis.call('LPOP', tag .. ':deleted') end
  end
  local is_done = not ends().clear_purged(limit) and left > 0
  is_done = is_done and redis.call('EXISTS', tag .. ':cascades') == 0
  if is_done then switches = band(switches, 255 - DELETING) end
  return is_done
end

return {begin = begin, purge = purge, step = step}
