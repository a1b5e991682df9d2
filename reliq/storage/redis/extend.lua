-- include: registry
-- Heartbeat: renew a worker and its leases, and tell it which it lost, which are to be cancelled, and which
-- leases it seems not to know of.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] worker
-- ARGV[3] runners
-- ARGV[4] ttl      ms
-- ARGV[5] lease    ms
-- ARGV[6] below    only leases with a smaller serial can be orphans; 0 asks for none
-- ARGV[7] in_flight  serials of claims whose answer is on its way, comma separated
-- ARGV[8..] per held lease: id, packed nonce and token
-- Returns per finding: "lost" | "cancel" | "orphan", id, packed nonce and token
local worker, lease, below = ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[6])
registry().register(worker, tonumber(ARGV[3]), tonumber(ARGV[4]), true)
local processing = tag .. ':processing:' .. worker
local answers, leases, held = {}, {}, {}
local ids, proofs = {}, {}
for i = 8, #ARGV, 2 do
  ids[#ids + 1], proofs[#proofs + 1] = ARGV[i], ARGV[i + 1]
end

local function found(what, id, proof)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = what, id, proof
end

local raws = #ids > 0 and redis.call('HMGET', tag .. ':jobs', unpack(ids)) or {}
for i, id in ipairs(ids) do
  local r = decode(raws[i])
  if r and may(MAY.extend, r[STATE]) and is_live(r) and r[WORKER] == worker and struct.pack('<c8I4', r[NONCE], r[TOKEN]) == proofs[i] then
    local n = #leases
    leases[n + 1], leases[n + 2] = now + lease, id
    held[id] = true
    if has(r[FLAGS], CANCEL) ~= 0 then found('cancel', id, proofs[i]) end
  else
    found('lost', id, proofs[i])
  end
end
if #leases > 0 then redis.call('ZADD', processing, 'GT', unpack(leases)) end

if below > 0 and redis.call('ZCARD', processing) > #leases / 2 then
  local in_flight = {}
  for serial in string.gmatch(ARGV[7], '%d+') do in_flight[tonumber(serial)] = true end
  for _, id in ipairs(redis.call('ZRANGE', processing, 0, 4999)) do
    if not held[id] then
      local r = decode(redis.call('HGET', tag .. ':jobs', id))
      if r and may(MAY.extend, r[STATE]) and r[WORKER] == worker and r[SERIAL] < below and not in_flight[r[SERIAL]] then
        found('orphan', id, struct.pack('<c8I4', r[NONCE], r[TOKEN]))
      end
    end
  end
end
finish()
return answers
