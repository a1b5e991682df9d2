-- Jobs that wait for others. The dependents of an unfinished job stand in :dependents:<id>, each as its nonce and
-- id. When it ends they become a cascade: a set of members and an entry in :cascades, which scripts work off in bounded
-- steps, the one that began it first. :open counts the jobs that one waits for, :pins the unfinished dependents of a job,
-- finished or not.

local CASCADE <const> = '<c1c1I6'
local CASCADE_SIZE <const> = 8
-- MAX_CASCADE, and MAX_LINKS: to unpin is little work.
local UNPINS <const> = 1000
local left, unpins_left = MAX_CASCADE, UNPINS
local CAUSES = {
  f = 'failed', c = 'was cancelled', p = 'was purged', u = 'is unknown', x = 'expired', d = 'was discarded', r = 'was replaced',
}
local carry_on

local function begin(kind, cause, subject)
  local number = redis.call('HINCRBY', tag .. ':meta', 'cascade', 1)
  redis.call('RPUSH', tag .. ':cascades', struct.pack(CASCADE, kind, cause, number) .. subject)
  counts.cascade = carry_on
  return tag .. ':cascade:' .. text(number)
end

-- One unfinished dependent less; the last one unpins a completed record, whose result's time begins then.
local function unpin(id, nonce, member)
  local r = decode(redis.call('HGET', tag .. ':jobs', id))
  if not r or r[NONCE] ~= nonce then return end
  redis.call('ZREM', tag .. ':dependents:' .. id, member)
  if redis.call('HINCRBY', tag .. ':pins', id, -1) > 0 then return end
  redis.call('HDEL', tag .. ':pins', id)
  if r[STATE] ~= 'C' or r[UNTIL] ~= PINNED then return end
  local s = entry(id)
  r[UNTIL] = now + (s and s.ttl or r[RESULT_TTL])
  if s and s.ttl then
    s.ttl = nil
    keep(id, s)
  end
  if r[EPOCH] == epoch then ended[#ended + 1], ended[#ended + 2] = r[UNTIL], id end
  save(id, r)
end

-- A job that waited for others has ended.
local function let_go(id, r, s)
  local member, links = r[NONCE] .. id, s.links
  if #links / 2 <= unpins_left then
    unpins_left = unpins_left - #links / 2
    for i = 1, #links, 2 do unpin(links[i], links[i + 1], member) end
  else
    local key = begin('U', '-', member)
    for i = 1, #links, 2 do redis.call('ZADD', key, 0, links[i + 1] .. links[i]) end
  end
  s.links, s.due = nil, nil
  keep(id, s)
  redis.call('HDEL', tag .. ':open', id)
end

-- A job that others wait for has ended.
local function follow(id, kind, cause)
  local key = tag .. ':dependents:' .. id
  if redis.call('EXISTS', key) == 1 then redis.call('RENAME', key, begin(kind, cause, id)) end
end

local function step(kind, cause, subject, member)
  local nonce, id = string.sub(member, 1, 8), string.sub(member, 9)
  if kind == 'U' then
    unpin(id, nonce, subject)
    return
  end
  local r = decode(redis.call('HGET', tag .. ':jobs', id))
  if not r or r[NONCE] ~= nonce or r[STATE] ~= 'W' or not may(MAY.promote, 'W') or r[EPOCH] ~= epoch then return end
  if kind == 'C' and redis.call('HINCRBY', tag .. ':open', id, -1) > 0 then return end
  redis.call('ZREM', tag .. ':waiting', id)
  count('W', -1)
  if kind == 'F' then
    local message = "job '" .. subject .. "', which it waits for, " .. CAUSES[cause]
    fail(id, r, cjson.encode({type = 'DependencyError', message = message, traceback = ''}), false)
  else
    redis.call('HDEL', tag .. ':open', id)
    local s = entry(id)
    local due_at = s and s.due
    if due_at then
      s.due = nil
      keep(id, s)
    end
    if due_at and due_at > now then
      r[STATE], r[STAMP] = 'S', now
      due[#due + 1], due[#due + 2] = due_at, id
      count('S', 1)
      note('s', id)
    else
      side().enter(backs, id, r)
      note('q', id)
    end
  end
  save(id, r)
end

-- Work off cascades, as far as one script may.
carry_on = function()
  counts.cascade = nil
  while left > 0 do
    local head = redis.call('LINDEX', tag .. ':cascades', 0)
    if not head then break end
    local kind, cause, number = struct.unpack(CASCADE, head)
    local asked = left
    local members = redis.call('ZPOPMIN', tag .. ':cascade:' .. text(number), asked)
    left = left - #members / 2
    for i = 1, #members, 2 do step(kind, cause, string.sub(head, CASCADE_SIZE + 1), members[i]) end
    if #members / 2 < asked then redis.call('LPOP', tag .. ':cascades') end
  end
  switches = bor(band(switches, 255 - CASCADING), redis.call('EXISTS', tag .. ':cascades') == 1 and CASCADING or 0)
end

-- Write what this script holds back, so that it can be read.
local function flush()
  if #records > 0 then redis.call('HSET', tag .. ':jobs', unpack(records)) end
  for i = #records, 1, -1 do records[i] = nil end
end

-- A new job comes after others, `names`, each behind two bytes of its length; whether it has to wait: not when all of
-- them have completed. One that cannot complete any more fails it by a cascade.
local function bind(id, nonce, names, sequence, s)
  flush()
  local ids, found, open, at = {}, {}, 0, 1
  while at < #names do
    local size = struct.unpack('<I2', names, at)
    local name = string.sub(names, at + 2, at + 1 + size)
    at = at + 2 + size
    local r = decode(redis.call('HGET', tag .. ':jobs', name))
    local live, cause = false, nil
    if r then live, cause = is_live(r)
    else cause = select(4, tombstone(redis.call('HGET', tag .. ':gone', name))) end
    if not live or r[STATE] == 'D' then
      redis.call('ZADD', begin('F', live and 'f' or cause or 'u', name), 0, nonce .. id)
      return true
    end
    if r[STATE] ~= 'C' then open = open + 1 end
    ids[#ids + 1], found[#found + 1] = name, r
  end
  s.links = {}
  if open > 0 then redis.call('HSET', tag .. ':open', id, open) end
  for i, name in ipairs(ids) do
    local r = found[i]
    local is_known = has(r[FLAGS], DEPENDED) ~= 0
    r[FLAGS] = bor(r[FLAGS], DEPENDED)
    redis.call('HINCRBY', tag .. ':pins', name, 1)
    if r[STATE] ~= 'C' then
      redis.call('ZADD', tag .. ':dependents:' .. name, text(sequence), nonce .. id)
    elseif r[UNTIL] ~= PINNED then
      local other = entry(name) or {}
      other.ttl = r[UNTIL] - r[STAMP]
      if now >= r[UNTIL] then
        -- Its result is gone for good, only the record stays.
        other.ttl = 0
        redis.call('HDEL', tag .. ':results', name)
      end
      keep(name, other)
      r[FLAGS], r[UNTIL], is_known = bor(r[FLAGS], SIDE), PINNED, false
      ended[#ended + 1], ended[#ended + 2] = text(PINNED), name
    end
    if not is_known then save(name, r) end
    s.links[2 * i - 1], s.links[2 * i] = name, r[NONCE]
  end
  return open > 0
end

return {bind = bind, carry_on = carry_on, follow = follow, let_go = let_go}
