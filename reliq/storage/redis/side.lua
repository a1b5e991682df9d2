-- What few jobs have: an entry in :side, a group, links to other jobs, progress, no end of their own. An entry is
-- a map of any of: group, sequence; links (id and nonce of each job it waits for, in turns), due; ttl (of the
-- result, to begin once nobody pins it).

local function entry(id)
  local raw = redis.call('HGET', tag .. ':side', id)
  return raw and cmsgpack.unpack(raw)
end

local function keep(id, s)
  if next(s) == nil then redis.call('HDEL', tag .. ':side', id)
  else redis.call('HSET', tag .. ':side', id, cmsgpack.pack(s)) end
end

-- include: groups links limits

-- Persistent jobs are counted apart: those that hold a lease and those that have yet to get one.
local PLACES = {W = 'persistent', S = 'persistent', Q = 'persistent', R = 'persistent', P = 'persistent:leased'}
local function moved(from, to)
  if PLACES[from] then redis.call('HINCRBY', tag .. ':meta', PLACES[from], -1) end
  if PLACES[to] then redis.call('HINCRBY', tag .. ':meta', PLACES[to], 1) end
end

-- The attempts of a persistent job after a run that did not end well: it is never exhausted.
local function unspent(r)
  return now - r[STAMP] >= STEADY_MS and 0 or math.min(r[ATTEMPTS], r[MAX] - 1)
end

-- The job enters the queue as `place` has it; behind the head of its group it is blocked instead.
local function enter(lists, id, r)
  local s = has(r[FLAGS], SIDE) ~= 0 and entry(id)
  if s and s.group and not groups().is_head(id, s) then groups().block(id, r, s)
  else place(lists, id, r) end
end

-- A new job: what enqueue fixed of it, its `position`, which is its sequence too, and when it is due. Returns its
-- state, its flags, and whether it takes its position in the queue.
local function accept(id, fixed, position, due_at)
  local is_persistent, size = struct.unpack('<I1I2', fixed, 45)
  local s, flags, state, is_placed = {}, 0, due_at > now and 'S' or 'Q', true
  if is_persistent == 1 then
    flags = PERSISTENT + SOLO
    moved(nil, 'Q')
  end
  if size > 0 then s.group, s.sequence = string.sub(fixed, 48, 47 + size), position end
  if #fixed > 47 + size and links().bind(id, string.sub(fixed, 4, 11), string.sub(fixed, 48 + size), position, s) then
    s.due = state == 'S' and due_at or nil
    state = 'W'
    redis.call('ZADD', tag .. ':waiting', text(position), id)
  end
  if s.group then
    switches = bor(switches, GROUPED)
    is_placed = groups().join(id, s)
    if state == 'Q' and not is_placed then groups().hold(id, s) end
  end
  if state == 'W' or next(s) ~= nil then
    flags = flags + SIDE
    keep(id, s)
  end
  return state, flags, is_placed
end

-- What a claim hands out besides the record: the job's place in its group's order, and the group.
local function claimed(id, flags)
  if has(flags, PERSISTENT) ~= 0 then moved('Q', 'P') end
  local s = has(flags, SIDE) ~= 0 and entry(id)
  return s and s.group and struct.pack('<I6', s.sequence) .. s.group or ''
end

-- The job has ended, from the state `from`, or goes: its group moves on, those it waited for are waited for by one
-- less, those that wait for it learn how it ended: `kind` C or F, and the cause of the latter.
local function close(id, r, from, kind, cause)
  if has(r[FLAGS], PERSISTENT) ~= 0 and (from == 'P' or r[EPOCH] == epoch) then moved(from, nil) end
  local s = has(r[FLAGS], SIDE) ~= 0 and entry(id)
  if s and s.links then links().let_go(id, r, s) end
  if has(r[FLAGS], DEPENDED) ~= 0 then links().follow(id, kind, cause) end
  if s and s.group then groups().leave(id, s) end
end

-- End the run of `id` as completed, beside what is written of every completed job. A `ttl` of 0 is the record's own.
-- Returns the new record.
local function complete(id, r, token, ttl, result)
  announce(id, r, result)
  ttl = ttl > 0 and ttl
  r[STATE], r[FLAGS], r[STAMP], r[EPOCH], r[WORKER] = 'C', band(r[FLAGS], LASTING), now, epoch, ''
  r[SETTLED], r[ANSWER], r[UNTIL] = token, 'C', now + (ttl or r[RESULT_TTL])
  if has(r[FLAGS], DEPENDED) ~= 0 and redis.call('HEXISTS', tag .. ':pins', id) == 1 then
    r[UNTIL] = PINNED
    if ttl then
      local s = entry(id) or {}
      s.ttl, r[FLAGS] = ttl, bor(r[FLAGS], SIDE)
      keep(id, s)
    end
  end
  save(id, r)
  ended[#ended + 1], ended[#ended + 2] = text(r[UNTIL]), id
  close(id, r, 'P', 'C', 'c')
  return encode(r)
end

-- A dead letter comes back, at the end of its group's line.
local function revive(id, r)
  local s = has(r[FLAGS], SIDE) ~= 0 and entry(id)
  if s and s.group then
    groups().rejoin(id, s)
    keep(id, s)
  end
  if has(r[FLAGS], PERSISTENT) ~= 0 then moved(nil, 'Q') end
  enter(backs, id, r)
end

-- The record of `id` goes, and all of this with it.
local function remove(id, r, cause)
  local state = r[STATE]
  if state == 'W' then redis.call('ZREM', tag .. ':waiting', id) end
  if state ~= 'C' and state ~= 'D' then close(id, r, state, 'F', cause) end
  redis.call('HDEL', tag .. ':side', id)
  redis.call('HDEL', tag .. ':progress', id)
  -- One that failed without a run and came back has a history too.
  redis.call('HDEL', tag .. ':errors', id)
  redis.call('HDEL', tag .. ':pins', id)
end

return {
  accept = accept, claimed = claimed, close = close, complete = complete, enter = enter, entry = entry, groups = groups,
  keep = keep, limits = limits, links = links, moved = moved, remove = remove, revive = revive, unspent = unspent,
}
