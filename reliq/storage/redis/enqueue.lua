-- include: ends
-- Accept each job whose id is free; a duplicate changes nothing.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] waiter   reply token of the one job's caller, or ''
-- ARGV[3] wait_ms  how long that caller waits
-- ARGV[4..] per job: id, what enqueue fixes of the record (32 bytes; longer: delay and epoch time behind it; longer
--           yet: whether it is persistent, its group, and the ids it waits for, text behind two bytes of its length), message
-- Returns per job: "qQ", "qS" or "qW" when accepted as sent; else status q|d|c, state, nonce, and the result;
--         then "new" when the queue began with this call. Or "full" and the limit, and nothing was written
local waiter, wait_ms = ARGV[2], tonumber(ARGV[3])
-- Upkeep without any worker: now and then, a little more of it than jobs came in.
local EVERY <const> = 8
local jobs = (#ARGV - 3) / 3
local is_new = back == 0
if jobs >= EVERY or math.floor(back / EVERY) ~= math.floor((back + jobs) / EVERY) then
  ends().tidy(2 * (jobs + EVERY))
  ends().clear_purged(2 * (jobs + EVERY))
  ends().expire(2 * (jobs + EVERY), {})
end

local ids = {}
for i = 1, jobs do ids[i] = ARGV[3 * i + 1] end
local raws = redis.call('HMGET', tag .. ':jobs', unpack(ids))
local gone = redis.call('EXISTS', tag .. ':gone') == 1 and redis.call('HMGET', tag .. ':gone', unpack(ids)) or {}
local accepted, bodies, answers, queued_now, is_linked = {}, {}, {}, 0, false
-- All that new records of this call have in common, around their position.
local before = struct.pack('<c1I1I2I3', 'Q', waiter ~= '' and WAITED or 0, 0, 0)
local behind = struct.pack('<I6I6I2', now, now, epoch)

local function accept(i, id, fixed)
  back = back + 1
  local state, flags, is_placed = 'Q', 0, true
  if #fixed > 32 then
    local delay, at = struct.unpack('<I6I6', fixed, 33)
    local due_at = at > 0 and at or now + delay
    if #fixed > 44 then
      is_linked = true
      state, flags, is_placed = ends().side().accept(id, fixed, back, due_at)
      -- Others may have been placed before it.
      back = back + 1
    elseif due_at > now then
      state = 'S'
    end
    fixed = string.sub(fixed, 1, 32)
    if state == 'S' then due[#due + 1], due[#due + 2] = due_at, id end
    if state ~= 'Q' or not is_placed then
      count(state, 1)
      note(string.lower(state), id)
      is_placed = false
    end
  end
  if is_placed then
    local prio = string.byte(fixed, 1)
    local entries = backs[prio]
    if not entries then entries = {}; backs[prio] = entries end
    entries[#entries + 1] = string.format('%d:%s', back, id)
    queued_now = queued_now + 1
    note('q', id)
  end
  local n = #bodies
  local record = before .. struct.pack('<i6', back) .. behind .. fixed
  bodies[n + 1], bodies[n + 2] = id, ARGV[3 * i + 3]
  if flags > 0 then
    redis.call('HSET', tag .. ':jobs', id, state .. string.char(bor(flags, string.byte(record, 2))) .. string.sub(record, 3))
  else
    if state == 'S' then record = 'S' .. string.sub(record, 2) end
    n = #records
    records[n + 1], records[n + 2] = id, record
  end
  accepted[id] = i
  return 'q' .. state
end

-- Whether the record under `id` gives way to a new one; if so it is gone afterwards.
local function replaceable(id, r, is_trial)
  local live, cause = is_live(r)
  if live then
    if r[STATE] ~= 'D' and (r[STATE] ~= 'C' or r[UNTIL] == PINNED or now < ends().window_end(r)) then return false end
    cause = 'r'
  end
  if not is_trial then ends().drop(id, r, cause) end
  return true
end

local function is_gone(i, nonce) return gone[i] and ends().tombstone(gone[i], nonce) end

if switches ~= 0 and has(switches, BOUNDED) ~= 0 then
  local fresh, limits = {}, ends().side().limits()
  local room = limits.room()
  for i, id in ipairs(ids) do
    local nonce, r = string.sub(ARGV[3 * i + 2], 4, 11), decode(raws[i])
    -- What gives way was none of those that are counted.
    if not fresh[id] and not (r and r[NONCE] == nonce) and not is_gone(i, nonce) and (not r or replaceable(id, r, true)) then
      fresh[id] = true
      room = room - 1
    end
  end
  if room < 0 and next(fresh) ~= nil then
    finish()
    return {'full', text(limits.length)}
  end
end

for i, id in ipairs(ids) do
  local fixed, answer = ARGV[3 * i + 2], nil
  -- A job that waits for others changes their records.
  local raw = is_linked and redis.call('HGET', tag .. ':jobs', id) or not is_linked and raws[i]
  local r = raw and decode(raw)
  if raw and not r then
    -- A record that cannot be read gives way; it leaves the counter that it names.
    local letter = string.sub(raw, 1, 1)
    if may('WSQPRCD', letter) and letter ~= '' then count(letter, -1) end
  end
  if accepted[id] then
    local nonce = string.sub(ARGV[3 * accepted[id] + 2], 4, 11)
    local state = string.sub(answers[accepted[id]], 2)
    answer = (nonce == string.sub(fixed, 4, 11) and 'q' or 'd') .. state .. nonce
  elseif not r and not gone[i] then
    answer = accept(i, id, fixed)
  else
    local nonce = string.sub(fixed, 4, 11)
    if r and r[NONCE] == nonce then answer = 'q' .. r[STATE] .. nonce
    elseif is_gone(i, nonce) then
      -- The first answer again; a caller that waits is told to look how it ended.
      answer = (waiter ~= '' and 'qA' or 'qQ') .. nonce
    elseif not r or replaceable(id, r) then answer = accept(i, id, fixed)
    elseif r[STATE] == 'C' and now < r[UNTIL] then
      local result = redis.call('HGET', tag .. ':results', id)
      answer = (result and 'cC' or 'dC') .. r[NONCE] .. (result or '')
    else answer = 'd' .. r[STATE] .. r[NONCE] end
  end
  answers[i] = answer
  if waiter ~= '' and not may('ACD', string.sub(answer, 2, 2)) then
    local entry = redis.call('HGET', tag .. ':waiters', id)
    local waiters = {waiter, now + wait_ms}
    local others = entry and cmsgpack.unpack(entry) or {}
    for n = 1, #others, 2 do
      -- Those whose time is long over did not say that they left.
      if others[n + 1] + REPLY_MS > now then waiters[#waiters + 1], waiters[#waiters + 2] = others[n], others[n + 1] end
    end
    redis.call('HSET', tag .. ':waiters', id, cmsgpack.pack(waiters))
    if r and not accepted[id] and has(r[FLAGS], WAITED) == 0 then
      r[FLAGS] = bor(r[FLAGS], WAITED)
      save(id, r)
    end
  end
end
count('Q', queued_now)
if not must_ring then must_ring = queued_now > 0 end
if #bodies > 0 then redis.call('HSET', tag .. ':messages', unpack(bodies)) end
finish()
if is_new and back > 0 then
  -- What a deleted queue left its traces for.
  redis.call('PERSIST', tag .. ':gone')
  redis.call('PERSIST', tag .. ':gone:order')
  answers[jobs + 1] = 'new'
end
return answers
