-- include: ends registry
-- Move queued jobs to a worker: token and attempt counted, lease taken, all in this step.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] worker   key of the worker
-- ARGV[3] runners  how many jobs it runs at once
-- ARGV[4] ttl      its time to live, ms
-- ARGV[5] limit    the most jobs to take
-- ARGV[6] serial   number of this claim of the worker
-- ARGV[7] lease    ms
-- ARGV[8] max_bytes  of messages; one job is taken whatever its size
-- Returns "1" when claimable work remains, "w" and ms when a rate limit holds it, else "0"; then per job: id, record
--         (behind it, for one of a group: its sequence, the group), message
local worker = ARGV[2]
local limit, serial, lease, max_bytes = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local MAX_LOOKS <const> = 1000

registry().register(worker, tonumber(ARGV[3]), tonumber(ARGV[4]), false)
local claimable, limits, held = queued, nil, nil
if switches ~= 0 then
  if has(switches, BLOCKED) ~= 0 then claimable = queued - ends().side().groups().blocked() end
  if has(switches, PAUSED) ~= 0 then claimable = 0 end
  if claimable > 0 and has(switches, LIMITED) ~= 0 then
    limits, limit = ends().side().limits(), 1
    held = limits.held()
  end
end
if held or claimable <= 0 then
  finish()
  return {held and held > 0 and 'w' .. held or '0'}
end
limit = math.min(limit, math.max(1, math.floor(claimable / math.max(1, runners))))

local ids, raws, bytes, looked, is_full = {}, {}, 0, 0, false

-- A record that cannot be read ends as a dead letter, with its cause, and stops nobody.
local function bury(id, prio)
  local r = decode(struct.pack(CHANGING, 'D', 0, 0, 0, 0, now, now, epoch)
    .. struct.pack(FIXED, prio, 1, 'corrupt!', 1, 1, 30 * 86400000, 0))
  -- Whatever it was, its group and those that wait for it must not wait for ever.
  if redis.call('EXISTS', tag .. ':side', tag .. ':pins') > 0 then r[FLAGS] = SIDE + DEPENDED end
  ends().fail(id, r, '{"type":"StorageCorruptError","message":"the stored record cannot be read","traceback":""}', false)
  count('Q', -1)
  save(id, r)
end

-- Take from one list until enough is taken or the list is empty; true when it is empty.
local function take(prio)
  local key = pending_key(prio)
  while not is_full and looked < MAX_LOOKS do
    local asked = math.min(limit - #ids, MAX_LOOKS - looked)
    local entries = redis.call('LPOP', key, asked) or {}
    -- The marks of an unfinished sweep are passed over, so names and entries need not stand at the same place.
    local names, positions, places = {}, {}, {}
    for place, entry in ipairs(entries) do
      local position, id = string.match(entry, '^(%-?%d+):(.*)$')
      if id then
        local n = #names + 1
        names[n], positions[n], places[n] = id, position, place
      end
    end
    looked = looked + #entries
    local found = #names > 0 and redis.call('HMGET', tag .. ':jobs', unpack(names)) or {}
    for i, id in ipairs(names) do
      local raw = found[i]
      if raw and #raw < PLAIN then
        bury(id, prio)
      elseif raw then
        local state, flags, _, _, position, _, _, born = struct.unpack(CHANGING, raw)
        -- An entry counts only while it is the record's position; others were left behind.
        if may(MAY.claim, state) and position == tonumber(positions[i]) and born == epoch then
          local is_solo = has(flags, SOLO) ~= 0
          local size = struct.unpack('<I3', raw, SIZE_AT)
          local fits = #ids == 0 or (not is_solo and bytes + size <= max_bytes)
          if fits then ids[#ids + 1], raws[#raws + 1], bytes = id, raw, bytes + size end
          if is_solo or not fits then
            -- This claim ends here: the entries behind keep their places.
            for last = #entries, fits and places[i] + 1 or places[i], -1 do redis.call('LPUSH', key, entries[last]) end
            is_full = true
            return false
          end
        end
      end
    end
    if #entries < asked then return true end
    is_full = #ids >= limit
  end
  return false
end

if prios > 1 then
  for prio = 9, 1, -1 do
    if not is_full and has(prios, 2 ^ prio) ~= 0 and take(prio) then prios = prios - 2 ^ prio end
  end
end
if not is_full and has(prios, 1) ~= 0 and take(0) then prios = prios - 1 end

local answers = {'0'}
if #ids > 0 then
  local messages = redis.call('HMGET', tag .. ':messages', unpack(ids))
  local leases = {}
  local deadline, lease_end = text(now + lease), struct.pack('<I6', serial) .. worker
  local batch = #ids > 1 and BATCH or 0
  for i, id in ipairs(ids) do
    local raw = raws[i]
    local _, flags, attempts, token, position, _, created, born = struct.unpack(CHANGING, raw)
    local settled = #raw > PLAIN and raw or raw .. NEVER_CLAIMED
    local record = struct.pack(CHANGING, 'P', bor(band(flags, KEPT), batch), attempts + 1, token + 1, position, now, created, born)
      .. string.sub(settled, FIXED_AT, LEASE_AT + 3) .. lease_end
    note('p', id)
    local n = 2 * i
    records[#records + 1], records[#records + 2] = id, record
    leases[n - 1], leases[n] = deadline, id
    if flags >= SIDE then record = record .. ends().side().claimed(id, flags) end
    answers[3 * i - 1], answers[3 * i], answers[3 * i + 1] = id, record, messages[i] or ''
  end
  redis.call('ZADD', tag .. ':processing:' .. worker, unpack(leases))
  count('Q', -#ids)
  count('P', #ids)
  if limits then
    limits.spend()
    held = limits.held()
  end
end
if claimable + (counts.Q or 0) > 0 and prios > 0 then
  if not held then
    answers[1] = '1'
    must_ring = true
  elseif held > 0 then
    answers[1] = 'w' .. held
  end
end
finish()
return answers
