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
local answers, results, leases, seen = {}, {}, {}, {}

-- The first answer again, for a settle that was carried out already.
local function repeated(id, r, nonce, token)
  if r and r[NONCE] == nonce then return r[SETTLED] == token and r[ANSWER] or '-' end
  local found, last, answer = ends().tombstone(redis.call('HGET', tag .. ':gone', id), nonce)
  return found and last == token and answer or '-'
end

local function settle(i, id, r)
  local verb, worker = verbs[i], r[WORKER]
  local list = leases[worker]
  if not list then list = {}; leases[worker] = list end
  list[#list + 1] = id
  r[SETTLED] = tokens[i]
  if has(r[FLAGS], CANCEL) ~= 0 and verb ~= 'C' then
    r[ANSWER] = 'A'
    ends().drop(id, r, 'c')
    note('x', id)
    return 'A'
  end
  count('P', -1)
  r[FLAGS] = band(r[FLAGS], SOLO + WAITED)
  if verb == 'C' then
    if ttls[i] > 0 then r[RESULT_TTL] = ttls[i] end
    r[STATE], r[STAMP], r[EPOCH], r[WORKER] = 'C', now, epoch, ''
    local n = #results
    results[n + 1], results[n + 2] = id, bodies[i]
    n = #ended
    ended[n + 1], ended[n + 2] = now + r[RESULT_TTL], id
    count('C', 1)
    note('c', id)
    if has(r[FLAGS], WAITED) ~= 0 then ends().announce(id, r, bodies[i]) end
  elseif verb == 'L' then
    r[ATTEMPTS] = r[ATTEMPTS] - 1
    place(fronts, id, r)
    note('u', id)
  elseif verb == 'F' or r[ATTEMPTS] >= r[MAX] then
    if ttls[i] > 0 then r[DEAD_TTL] = ttls[i] end
    ends().fail(id, r, bodies[i], verb == 'R')
  else
    ends().remember(id, r, r[ATTEMPTS], bodies[i])
    if delays[i] > 0 then
      r[STATE], r[STAMP], r[EPOCH], r[WORKER] = 'R', now, epoch, ''
      local n = #due
      due[n + 1], due[n + 2] = now + delays[i], id
      count('R', 1)
    else
      place(backs, id, r)
    end
    note('r', id)
  end
  r[ANSWER] = r[STATE]
  save(id, r)
  return r[STATE]
end

local releases = {}

local function answer(i)
  local id = ids[i]
  local r = seen[id] or decode(raws[i])
  if r and r[NONCE] == nonces[i] and r[TOKEN] == tokens[i] and may(VERBS[verbs[i]], r[STATE]) then
    answers[i] = settle(i, id, r)
    seen[id] = r
  else
    answers[i] = repeated(id, r, nonces[i], tokens[i])
  end
end

for i, verb in ipairs(verbs) do
  if verb == 'L' then
    local r = decode(raws[i])
    releases[#releases + 1] = {i, r and r[POSITION] or 0}
  else
    answer(i)
  end
end
-- Released jobs return to the front in their old order, whatever the order of the batch.
table.sort(releases, function(a, b) return a[2] > b[2] end)
for _, release in ipairs(releases) do answer(release[1]) end
for worker, list in pairs(leases) do redis.call('ZREM', tag .. ':processing:' .. worker, unpack(list)) end
if #results > 0 then redis.call('HSET', tag .. ':results', unpack(results)) end
finish()
return answers
