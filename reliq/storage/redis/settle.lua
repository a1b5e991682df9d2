-- include: ends
-- End runs, item by item: complete, retry, fail or release. Refused unless the lease is the caller's.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2..] per item: id, packed verb C|R|F|L, nonce, token, delay ms, ttl ms (0 = the record's), and the result or error
-- Returns per item: the state it led to, 'A' when the record is gone, '-' when refused
local ids, verbs, nonces, tokens, delays, ttls, bodies = {}, {}, {}, {}, {}, {}, {}
for i = 2, #ARGV, 3 do
  local n = #ids + 1
  ids[n], bodies[n] = ARGV[i], ARGV[i + 2]
  verbs[n], nonces[n], tokens[n], delays[n], ttls[n] = struct.unpack('<c1c8I4I8I8', ARGV[i + 1])
end
local VERBS = {C = MAY.complete, R = MAY.retry, F = MAY.fail, L = MAY.release}
local raws = redis.call('HMGET', tag .. ':jobs', unpack(ids))
if switches >= CASCADING then
  if has(switches, CASCADING) ~= 0 then counts.cascade = ends().side().links().carry_on end
  -- What a deletion has yet to carry out is nobody's any more.
  for i, raw in ipairs(raws) do
    if has(switches, DELETING) ~= 0 and raw and not is_live(decode(raw)) then raws[i] = false end
  end
end
local answers, results, released, leases, seen, expires, completed = {}, {}, {}, {}, {}, {}, 0

-- The first answer again, for a settle that was carried out already.
local function repeated(id, r, nonce, token)
  if r and r[NONCE] == nonce then return r[SETTLED] == token and r[ANSWER] or '-' end
  local found, last, answer = ends().tombstone(redis.call('HGET', tag .. ':gone', id), nonce)
  return found and last == token and answer or '-'
end

local function end_lease(worker, id)
  local list = leases[worker]
  if not list then list = {}; leases[worker] = list end
  list[#list + 1] = id
end

-- The hot path: nearly every run ends here, so the record is not made a table.
local function complete(i, id, raw)
  local _, flags, attempts, token, position, _, created = struct.unpack(CHANGING, raw)
  completed = completed + 1
  note('c', id)
  end_lease(string.sub(raw, WORKER_AT), id)
  local last = #results
  results[last + 1], results[last + 2] = id, bodies[i]
  if flags >= SIDE then return ends().side().complete(id, decode(raw), token, ttls[i], bodies[i]) end
  local ttl = ttls[i] > 0 and ttls[i] or struct.unpack('<I6', raw, RESULT_TTL_AT)
  local record = struct.pack(CHANGING, 'C', band(flags, SOLO), attempts, token, position, now, created, epoch)
    .. string.sub(raw, FIXED_AT, PLAIN) .. struct.pack(LEASE, token, 'C', now + ttl)
  local n = #records
  records[n + 1], records[n + 2] = id, record
  expires[ttl] = expires[ttl] or text(now + ttl)
  n = #ended
  ended[n + 1], ended[n + 2] = expires[ttl], id
  if has(flags, WAITED) ~= 0 then ends().announce(id, decode(raw), bodies[i]) end
  return record
end

local function settle(i, id, r)
  local verb = verbs[i]
  end_lease(r[WORKER], id)
  r[SETTLED] = tokens[i]
  if has(r[FLAGS], CANCEL) ~= 0 then
    r[ANSWER] = 'A'
    ends().drop(id, r, 'c')
    note('x', id)
    return 'A'
  end
  count('P', -1)
  r[FLAGS] = band(r[FLAGS], KEPT)
  if verb == 'L' then
    if r[FLAGS] >= PERSISTENT then ends().side().moved('P', 'Q') end
    r[ATTEMPTS], r[STATE], r[ANSWER] = r[ATTEMPTS] - 1, 'Q', 'Q'
    released[#released + 1] = {id, r}
    note('u', id)
    return 'Q'
  elseif verb == 'F' or r[ATTEMPTS] >= r[MAX] and r[FLAGS] < PERSISTENT then
    ends().fail(id, r, bodies[i], verb == 'R', ttls[i] > 0 and ttls[i])
  else
    ends().remember(id, r, r[ATTEMPTS], bodies[i])
    if r[FLAGS] >= PERSISTENT then
      r[ATTEMPTS] = ends().side().unspent(r)
      ends().side().moved('P', 'Q')
    end
    if delays[i] > 0 then
      r[STATE], r[STAMP], r[EPOCH], r[SERIAL], r[WORKER] = 'R', now, epoch, 0, ''
      local n = #due
      due[n + 1], due[n + 2] = now + delays[i], id
      count('R', 1)
    elseif r[FLAGS] < SIDE then
      place(backs, id, r)
    else
      ends().side().enter(backs, id, r)
    end
    note('r', id)
  end
  r[ANSWER] = r[STATE]
  save(id, r)
  return r[STATE]
end

local function answer(i)
  local id = ids[i]
  local raw = seen[id] or raws[i]
  local is_holder = false
  if raw and #raw >= PLAIN then
    local state, _, _, token = struct.unpack('<c1I1I2I3', raw)
    is_holder = token == tokens[i] and may(VERBS[verbs[i]], state) and string.sub(raw, NONCE_AT, NONCE_AT + 7) == nonces[i]
  end
  if not is_holder then
    answers[i] = repeated(id, decode(raw), nonces[i], tokens[i])
  elseif verbs[i] == 'C' then
    answers[i], seen[id] = 'C', complete(i, id, raw)
  else
    local r = decode(raw)
    answers[i] = settle(i, id, r)
    -- One that went is no record any more: the rest of the batch finds its tombstone.
    seen[id] = answers[i] == 'A' and '' or encode(r)
  end
end

for i = 1, #ids do answer(i) end
-- Released jobs return to the front in their old order, whatever the order of the batch.
table.sort(released, function(a, b) return a[2][POSITION] > b[2][POSITION] end)
for _, job in ipairs(released) do
  if job[2][FLAGS] < SIDE then place(fronts, job[1], job[2]) else ends().side().enter(fronts, job[1], job[2]) end
  save(job[1], job[2])
end
for worker, list in pairs(leases) do redis.call('ZREM', tag .. ':processing:' .. worker, unpack(list)) end
count('P', -completed)
count('C', completed)
if #results > 0 then redis.call('HSET', tag .. ':results', unpack(results)) end
finish()
return answers
