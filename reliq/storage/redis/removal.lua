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

-- The same for good, with all settings; the running ones are absent from now on too.
local function begin()
  local purged, running = purge()
  switches = bor(band(switches, CASCADING), DELETING)
  redis.call('HDEL', tag .. ':meta', 'limits', 'full_at')
  redis.call('UNLINK', tag .. ':schedules', tag .. ':ticks')
  return purged + running
end

-- Carry out up to `limit` of what `begin` made absent; true when nothing is left of it.
local function step(limit)
  local left = limit
  for _, worker in ipairs(redis.call('ZRANGE', tag .. ':workers', 0, -1)) do
    local processing, offset, ids = tag .. ':processing:' .. worker, 0, {true}
    while left > 0 and #ids > 0 do
      ids = redis.call('ZRANGE', processing, offset, offset + left - 1)
      for _, id in ipairs(ids) do
        local r = decode(redis.call('HGET', tag .. ':jobs', id))
        if r and r[STATE] == 'P' and is_live(r) then
          -- Of a job that was enqueued since.
          offset = offset + 1
        else
          redis.call('ZREM', processing, id)
          if r and r[STATE] == 'P' then ends().drop(id, r, 'p') end
        end
        left = left - 1
      end
    end
    if redis.call('EXISTS', processing) == 0 then registry().unregister(worker) end
  end
  local is_done = not ends().clear_purged(limit) and left > 0
  is_done = is_done and redis.call('EXISTS', tag .. ':cascades') == 0
  if is_done then switches = band(switches, 255 - DELETING) end
  return is_done
end

return {begin = begin, purge = purge, step = step}
