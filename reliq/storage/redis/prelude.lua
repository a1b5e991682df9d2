-- Every transition starts with this: the clock, the layout of records, and `finish`, which
-- writes what a transition collected with one variadic call per key.
--
-- KEYS[1] tag STRING   "{prefix:queue}", the stem of all keys of one queue (one cluster slot)
-- ARGV[1] skew         milliseconds added to the server's clock; 0 outside of tests
--
-- A function costs a good part of a microsecond in each run of a script, most of it for finding the locals
-- that it uses. So only what every transition needs stands here; the parts that few runs need are made
-- when first used, and constants are put into the text when it is loaded (see scripts.py).
local tag = KEYS[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000) + ARGV[1]

-- A record: what transitions change, what enqueue fixed, and, once the job was claimed, its last
-- settle and its lease. 59 bytes for a job that never ran. One slot is the claim's SERIAL while the job is
-- processing, and UNTIL, the deadline of its result or dead letter, once it is finished.
local STATE <const> = 1
local FLAGS <const> = 2
local ATTEMPTS <const> = 3
local TOKEN <const> = 4
local POSITION <const> = 5
local STAMP <const> = 6
local CREATED <const> = 7
local EPOCH <const> = 8
local PRIO <const> = 9
local MAX <const> = 10
local NONCE <const> = 11
local RESULT_TTL <const> = 12
local DEDUP_TTL <const> = 13
local DEAD_TTL <const> = 14
local SIZE <const> = 15
local SETTLED <const> = 16
local ANSWER <const> = 17
local SERIAL <const> = 18
local UNTIL <const> = 18
local WORKER <const> = 19
local CHANGING <const> = '<c1I1I2I3i6I6I6I2'
local FIXED <const> = '<I1I2c8I6I6I6I3'
local LEASE <const> = '<I3c1I6'
local LAYOUT <const> = '<c1I1I2I3i6I6I6I2I1I2c8I6I6I6I3I3c1I6'
local PLAIN <const> = 59
local CLAIMED <const> = 69
local NEVER_CLAIMED <const> = '\0\0\0-\0\0\0\0\0\0'
-- Where the parts lie, for the hot paths, which take a record apart without making a table of it.
local FIXED_AT <const> = 28
local NONCE_AT <const> = 31
local RESULT_TTL_AT <const> = 39
local SIZE_AT <const> = 57
local LEASE_AT <const> = 60
local WORKER_AT <const> = 70
-- Flags.
local BATCH <const> = 1
local SOLO <const> = 2
local CANCEL <const> = 4
local EXHAUSTED <const> = 8
local WAITED <const> = 16
-- The three that no plain job has, above all others: it has an entry in :side or :progress, others wait or waited
-- for it, it never ends by itself. A record with one of them is written at once, never by finish().
local SIDE <const> = 32
local DEPENDED <const> = 64
local PERSISTENT <const> = 128
-- What stays when a run ends, and what when the job itself does.
local KEPT <const> = 242
local LASTING <const> = 226
-- The deadline of a completed record that unfinished jobs wait for, or waited for.
local PINNED <const> = 281474976710655

-- The queue's own numbers, one field. Positions: the back counts up from 1, the front down from -1, so
-- that within one priority a smaller position is served first. `prios`: bit n says that list n is in use.
-- `switches`: what makes this queue more than a plain one; 0 spares it everything else.
local CORE <const> = '<i6i6I2I2I6I1I4i6i6i6i6i6i6i6'
local NUMBERS <const> = '<i6i6I2I2I6I1I4i6'
local COUNTS <const> = '<i6i6i6i6i6i6i6'
local COUNTS_AT <const> = 28
local PAUSED <const> = 1
local LIMITED <const> = 2
local BOUNDED <const> = 4
local BLOCKED <const> = 8
local SLOTS <const> = 16
local CASCADING <const> = 32
local DELETING <const> = 64
-- It had a group once. Compared by nobody but in vacancy.lua, where 0 is what counts.
local GROUPED <const> = 128
local core = redis.call('HGET', tag .. ':meta', 'core') or string.rep('\0', 69)
local back, front, epoch, prios, listen, switches, runners, queued = struct.unpack(NUMBERS, core)

-- Listeners ask anew in real time, so the skew of a test is left out.
local is_listened = listen > now - ARGV[1]
local has, bor, band = bit.band, bit.bor, bit.band

local function decode(raw)
  if not raw or #raw < PLAIN then return nil end
  if #raw == PLAIN then raw = raw .. NEVER_CLAIMED end
  local r = {struct.unpack(LAYOUT, raw)}
  r[WORKER] = string.sub(raw, CLAIMED + 1)
  return r
end

local function encode(r)
  local raw = struct.pack(LAYOUT, unpack(r, 1, SERIAL))
  if r[SETTLED] == 0 and r[SERIAL] == 0 and r[WORKER] == '' then return string.sub(raw, 1, PLAIN) end
  return raw .. r[WORKER]
end

-- Whether a record still counts: purged and expired ones are absent to every transition.
local function is_live(r)
  local state = r[STATE]
  if state == 'P' and (has(switches, DELETING) == 0 or r[EPOCH] == epoch) then return true end
  if r[EPOCH] ~= epoch then return false, 'p' end
  if state == 'C' then
    -- The dedup window begins with the end of the job, on a .fifo queue with its acceptance.
    local from = string.sub(tag, -6) == '.fifo}' and CREATED or STAMP
    return now < math.max(r[UNTIL], r[from] + r[DEDUP_TTL]), 'x'
  end
  if state == 'D' then return now < r[UNTIL], 'x' end
  return true
end

local function may(states, state) return string.find(states, state, 1, true) ~= nil end

local function pending_key(prio)
  if prio == 0 then return tag .. ':pending' end
  return tag .. ':pending:' .. prio
end

-- What finish() writes. `fronts` and `backs` hold list entries by priority, in the order in
-- which they are pushed; `due` and `ended` are scores and ids.
local counts, records, fronts, backs, due, ended, events = {}, {}, {}, {}, {}, {}, {}
local must_ring = false

local function count(state, change) counts[state] = (counts[state] or 0) + change end

-- A number as text: a score or position handed over as a Lua number costs several times as much.
local function text(number) return string.format('%d', number) end

local function save(id, r)
  if r[FLAGS] >= SIDE then
    redis.call('HSET', tag .. ':jobs', id, encode(r))
  else
    local n = #records
    records[n + 1], records[n + 2] = id, encode(r)
  end
end

local function note(code, id)
  if is_listened then events[#events + 1] = struct.pack('<c1I2', code, #id) .. id end
end

-- The job enters the queue, at its back or before all others. Entries that it left in a list
-- earlier count no more. Of several jobs for the front the one to be served first comes last.
local function place(lists, id, r)
  local position
  if lists == fronts then
    front = front - 1
    position = front
  else
    back = back + 1
    position = back
  end
  r[STATE], r[POSITION], r[STAMP], r[EPOCH], r[SERIAL], r[WORKER] = 'Q', position, now, epoch, 0, ''
  local list = lists[r[PRIO]]
  if not list then list = {}; lists[r[PRIO]] = list end
  list[#list + 1] = string.format('%d:%s', position, id)
  must_ring = true
  count('Q', 1)
end

local function ring(name)
  if redis.call('LLEN', tag .. name) == 0 then redis.call('RPUSH', tag .. name, 1) end
end

local function push(command, lists)
  for prio, entries in pairs(lists) do
    redis.call(command, pending_key(prio), unpack(entries))
    prios = bor(prios, 2 ^ prio)
  end
end

local function finish()
  if counts.cascade then counts.cascade() end
  push('LPUSH', fronts)
  push('RPUSH', backs)
  if #records > 0 then redis.call('HSET', tag .. ':jobs', unpack(records)) end
  if #due > 0 then
    redis.call('ZADD', tag .. ':scheduled', unpack(due))
    local first = redis.call('ZRANGE', tag .. ':scheduled', 0, 0, 'WITHSCORES')
    for i = 1, #due, 2 do
      if due[i] <= tonumber(first[2]) then ring(':due-wake'); break end
    end
  end
  if #ended > 0 then redis.call('ZADD', tag .. ':expiry', unpack(ended)) end
  local q, w, s, p, r, c, d = struct.unpack(COUNTS, core, COUNTS_AT)
  local changed = struct.pack(CORE, back, front, epoch, prios, listen, switches, runners,
    q + (counts.Q or 0), w + (counts.W or 0), s + (counts.S or 0), p + (counts.P or 0),
    r + (counts.R or 0), c + (counts.C or 0), d + (counts.D or 0))
  if changed ~= core then redis.call('HSET', tag .. ':meta', 'core', changed) end
  if switches ~= 0 and has(switches, SLOTS) ~= 0 and (counts.P or 0) < 0 then
    -- A slot came free, and somebody may wait for it.
    must_ring = must_ring or q + (counts.Q or 0) > redis.call('ZCARD', tag .. ':blocked')
  end
  if must_ring then ring(':wake') end
  -- Last, and never an error: a user without channel rights must not fail a transition half way.
  if #events > 0 then redis.pcall('PUBLISH', tag .. ':events', table.concat(events)) end
end
