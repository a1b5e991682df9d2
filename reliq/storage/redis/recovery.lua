-- Taking leases away from workers.

-- Take leases away from `worker`: back to the front, in the order in which they were served.
-- A lease of a batch is not counted and the job becomes solo, so that a poison job is found out
-- without taking its neighbours along; any other lease counts.
local function recover(worker, ids)
  if #ids == 0 then return {} end
  local raws = redis.call('HMGET', tag .. ':jobs', unpack(ids))
  local jobs, changes = {}, {}
  for i, id in ipairs(ids) do
    local r = decode(raws[i])
    if r and may(MAY.recover, r[STATE]) and r[WORKER] == worker then jobs[#jobs + 1] = {id, r} end
  end
  redis.call('ZREM', tag .. ':processing:' .. worker, unpack(ids))
  table.sort(jobs, function(a, b) return a[2][POSITION] > b[2][POSITION] end)
  for _, job in ipairs(jobs) do
    local id, r = job[1], job[2]
    local event = 'stalled'
    if has(switches, DELETING) ~= 0 and not is_live(r) then
      ends().drop(id, r, 'p')
      event = 'cancelled'
    elseif has(r[FLAGS], CANCEL) ~= 0 then
      ends().drop(id, r, 'c')
      note('x', id)
      event = 'cancelled'
    else
      count('P', -1)
      local is_batch = has(r[FLAGS], BATCH) ~= 0 and has(r[FLAGS], SOLO) == 0
      r[FLAGS] = band(r[FLAGS], 255 - BATCH)
      if is_batch then
        r[FLAGS] = bor(r[FLAGS], SOLO)
        r[ATTEMPTS] = r[ATTEMPTS] - 1
      end
      local text = 'the worker stopped renewing its lease in the middle of attempt ' .. (r[ATTEMPTS] + (is_batch and 1 or 0))
      local error = cjson.encode({type = 'StalledError', message = text, traceback = ''})
      note('t', id)
      if r[ATTEMPTS] >= r[MAX] and r[FLAGS] < PERSISTENT then
        ends().fail(id, r, error, true)
        event = 'failed'
      else
        if not is_batch then ends().remember(id, r, r[ATTEMPTS], error) end
        if r[FLAGS] >= PERSISTENT then
          r[ATTEMPTS] = ends().side().unspent(r)
          ends().side().moved('P', 'Q')
        end
        if r[FLAGS] < SIDE then place(fronts, id, r) else ends().side().enter(fronts, id, r) end
      end
      save(id, r)
    end
    changes[#changes + 1], changes[#changes + 2] = event, id
  end
  return changes
end

-- The same for all that a worker holds, at most `limit` in one step. What was served last goes first, so that
-- the next step comes to stand before it.
local function recover_all(worker, limit)
  local ids = redis.call('ZRANGE', tag .. ':processing:' .. worker, 0, 8 * limit - 1)
  if #ids > limit then
    local raws, positions = redis.call('HMGET', tag .. ':jobs', unpack(ids, 1, math.min(#ids, 7000))), {}
    for i = 1, #raws do
      local r = decode(raws[i])
      positions[ids[i]] = r and r[POSITION] or 0
    end
    ids = {unpack(ids, 1, #raws)}
    table.sort(ids, function(a, b) return positions[a] > positions[b] end)
    ids = {unpack(ids, 1, limit)}
  end
  return recover(worker, ids), #ids
end

return {recover = recover, recover_all = recover_all}
