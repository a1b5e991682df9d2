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
-- Returns "1" when claimable work remains, else "0"; then per job: id, record, message
local worker = ARGV[2]
local limit, serial, lease, max_bytes = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local MAX_LOOKS = 1000

registry().register(worker, tonumber(ARGV[3]), tonumber(ARGV[4]), false)
if paused == 1 or queued <= 0 then
  finish()
  return {'0'}
end
limit = math.min(limit, math.max(1, math.floor(queued / math.max(1, runners))))

local ids, jobs, bytes, looked, is_full = {}, {}, 0, 0, false

-- Take from one list until enough is taken or the list is empty; true when it is empty.
local function take(prio)
  local key = pending_key(prio)
  while not is_full and looked < MAX_LOOKS do
    local asked = math.min(limit - #ids, MAX_LOOKS - looked)
    local entries = redis.call('LPOP', key, asked) or {}
    local names, positions = {}, {}
    for i, entry in ipairs(entries) do
      local colon = string.find(entry, ':', 1, true)
      positions[i], names[i] = tonumber(string.sub(entry, 1, (colon or 1) - 1)), string.sub(entry, (colon or 0) + 1)
    end
    local raws = #names > 0 and redis.call('HMGET', tag .. ':jobs', unpack(names)) or {}
    for i, id in ipairs(names) do
      looked = looked + 1
      local r = decode(raws[i])
      if raws[i] and not r then
        -- A record that cannot be read ends as a dead letter, with its cause, and stops nobody.
        r = decode(struct.pack(CHANGING, 'D', 0, 0, 0, 0, now, now, epoch)
          .. struct.pack('<I1I2c8I6I6I6I3', prio, 1, 'corrupt!', 1, 1, 30 * 86400000, 0))
        ends().fail(id, r, '{"type":"StorageCorruptError","message":"the stored record cannot be read","traceback":""}', false)
        count('Q', -1)
        save(id, r)
      elseif r and r[POSITION] == positions[i] and may(MAY.claim, r[STATE]) and r[EPOCH] == epoch then
        local is_solo = has(r[FLAGS], SOLO) ~= 0
        if #ids > 0 and (is_solo or bytes + r[SIZE] > max_bytes) then
          is_full = true
          -- Not for this claim: this entry and those behind it keep their places.
          for back = #entries, i, -1 do redis.call('LPUSH', key, entries[back]) end
          return false
        end
        ids[#ids + 1], jobs[#jobs + 1], bytes = id, r, bytes + r[SIZE]
        if is_solo then
          for back = #entries, i + 1, -1 do redis.call('LPUSH', key, entries[back]) end
          is_full = true
          return false
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
  local batch = #ids > 1 and BATCH or 0
  for i, id in ipairs(ids) do
    local r, n = jobs[i], nil
    r[STATE], r[STAMP] = 'P', now
    r[TOKEN], r[ATTEMPTS] = r[TOKEN] + 1, r[ATTEMPTS] + 1
    r[FLAGS] = bor(band(r[FLAGS], SOLO + WAITED), batch)
    r[SERIAL], r[WORKER] = serial, worker
    local record = encode(r)
    n = #records
    records[n + 1], records[n + 2] = id, record
    note('p', id)
    n = #leases
    leases[n + 1], leases[n + 2] = now + lease, id
    n = #answers
    answers[n + 1], answers[n + 2], answers[n + 3] = id, record, messages[i] or ''
  end
  redis.call('ZADD', tag .. ':processing:' .. worker, unpack(leases))
  count('Q', -#ids)
  count('P', #ids)
end
if queued + (counts.Q or 0) > 0 then
  answers[1] = '1'
  must_ring = true
end
finish()
return answers
