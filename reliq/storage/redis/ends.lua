-- How records end and go: replies to waiters, the history of errors, tombstones, removal.

local TOMBSTONE <const> = '<c8I3c1c1I6'
local TOMBSTONE_SIZE <const> = 19
local MAX_TOMBSTONES <const> = 256
-- A result up to this size travels in the reply; a larger one is read by its waiters.
local INLINE <const> = 16384
local REPLY_MS <const> = 60000

-- Reply to everybody who waits for the job. A field of :waiters holds token and deadline in turns.
local function reply(id, r, text)
  if has(r[FLAGS], WAITED) == 0 then return end
  r[FLAGS] = band(r[FLAGS], 255 - WAITED)
  local entry = redis.call('HGET', tag .. ':waiters', id)
  if not entry then return end
  local waiters = cmsgpack.unpack(entry)
  for i = 1, #waiters, 2 do
    local key = tag .. ':reply:' .. waiters[i]
    redis.call('RPUSH', key, text)
    redis.call('PEXPIRE', key, REPLY_MS)
  end
  redis.call('HDEL', tag .. ':waiters', id)
end

-- End `id` as completed; its result is written by the caller. A large one is read by its waiters.
local function announce(id, r, result)
  reply(id, r, #result <= INLINE and 'C' .. r[NONCE] .. result or 'R' .. r[NONCE])
end

local function remember(id, r, attempt, error)
  local raw = redis.call('HGET', tag .. ':errors', id)
  local history = raw and cmsgpack.unpack(raw) or {}
  history[#history + 1] = {now, r[WORKER], attempt, error}
  while #history > HISTORY do table.remove(history, 1) end
  redis.call('HSET', tag .. ':errors', id, cmsgpack.pack(history))
end

local function bury(id, r, cause)
  local stone = struct.pack(TOMBSTONE, r[NONCE], r[SETTLED], r[ANSWER], cause, now)
  local old = redis.call('HGET', tag .. ':gone', id) or ''
  if #old >= MAX_TOMBSTONES * TOMBSTONE_SIZE then old = string.sub(old, TOMBSTONE_SIZE + 1) end
  redis.call('HSET', tag .. ':gone', id, old .. stone)
  redis.call('RPUSH', tag .. ':gone:order', struct.pack('<I6', now) .. id)
end

-- The tombstone of one incarnation of `id`, or of its last one: nonce, token, answer, cause.
local function tombstone(stones, nonce)
  if not stones then return nil end
  for at = #stones - TOMBSTONE_SIZE + 1, 1, -TOMBSTONE_SIZE do
    local found, token, answer, cause, gone_at = struct.unpack(TOMBSTONE, stones, at)
    if gone_at + TOMBSTONE_MS > now and (not nonce or nonce == found) then return found, token, answer, cause end
  end
end

local fail

-- include: side

-- Take a record away with all that hangs on it. Its entry in a pending list stays behind and is
-- stale. What is counted as what: purged records left the counters when they were purged.
local function drop(id, r, cause)
  local state = r[STATE]
  redis.call('HDEL', tag .. ':jobs', id)
  redis.call('HDEL', tag .. ':messages', id)
  if state == 'S' or state == 'R' then redis.call('ZREM', tag .. ':scheduled', id) end
  if state == 'C' or state == 'D' then
    redis.call('HDEL', tag .. ':results', id)
    redis.call('ZREM', tag .. ':expiry', id)
    if state == 'D' then redis.call('ZREM', tag .. ':dead', id) end
  end
  if r[TOKEN] > 0 or state == 'D' then redis.call('HDEL', tag .. ':errors', id) end
  if state == 'P' then redis.call('ZREM', tag .. ':processing:' .. r[WORKER], id) end
  if state == 'P' or r[EPOCH] == epoch then count(state, -1) end
  if r[FLAGS] >= SIDE then side().remove(id, r, cause) end
  bury(id, r, cause)
  reply(id, r, 'G' .. r[NONCE] .. cause)
end

-- Expired tombstones and records, a few for each id that a transition touched: memory stays
-- bounded without any worker.
local function tidy(limit)
  while limit > 0 do
    local head = redis.call('LINDEX', tag .. ':gone:order', 0)
    if not head or struct.unpack('<I6', head) + TOMBSTONE_MS > now then break end
    redis.call('LPOP', tag .. ':gone:order')
    local id = string.sub(head, 7)
    local stones = redis.call('HGET', tag .. ':gone', id) or ''
    local at = 1
    while at < #stones and select(5, struct.unpack(TOMBSTONE, stones, at)) + TOMBSTONE_MS <= now do
      at = at + TOMBSTONE_SIZE
    end
    if at > #stones then redis.call('HDEL', tag .. ':gone', id)
    elseif at > 1 then redis.call('HSET', tag .. ':gone', id, string.sub(stones, at)) end
    limit = limit - 1
  end
end

-- Carry out some records that a purge made absent, and let their waiters know; whether some are left.
local function clear_purged(limit)
  local cursor = redis.call('HGET', tag .. ':meta', 'purging')
  if not cursor then return false end
  local page = redis.call('HSCAN', tag .. ':jobs', cursor, 'COUNT', limit)
  for i = 1, #page[2], 2 do
    local r = decode(page[2][i + 1])
    if r and r[STATE] ~= 'P' and r[EPOCH] ~= epoch then drop(page[2][i], r, 'p') end
  end
  if page[1] == '0' then redis.call('HDEL', tag .. ':meta', 'purging')
  else redis.call('HSET', tag .. ':meta', 'purging', page[1]) end
  return page[1] ~= '0'
end

-- When the id of a completed record is free again.
local function window_end(r)
  return (string.sub(tag, -6) == '.fifo}' and r[CREATED] or r[STAMP]) + r[DEDUP_TTL]
end

-- Up to `limit` finished records past their result or record deadline; how many were due. What
-- became of whom is added to `changes`.
local function expire(limit, changes)
  local ids = redis.call('ZRANGEBYSCORE', tag .. ':expiry', '-inf', now, 'LIMIT', 0, limit)
  if #ids == 0 then return 0 end
  local raws = redis.call('HMGET', tag .. ':jobs', unpack(ids))
  for i, id in ipairs(ids) do
    local r = decode(raws[i])
    if not r or not may(MAY.expire, r[STATE]) then
      redis.call('ZREM', tag .. ':expiry', id)
    else
      local live, cause = is_live(r)
      changes[#changes + 1], changes[#changes + 2] = 'expired', id
      if live then
        -- The result's own time is over, the record stands until its dedup window ends.
        redis.call('HDEL', tag .. ':results', id)
        redis.call('ZADD', tag .. ':expiry', window_end(r), id)
      else
        drop(id, r, cause)
        note('e', id)
      end
    end
  end
  return #ids
end

-- End `id` as a dead letter, for `ttl` or its own dead_ttl. `error` is appended to its history.
fail = function(id, r, error, is_exhausted, ttl)
  local from = r[STATE]
  remember(id, r, r[ATTEMPTS], error)
  r[STATE], r[STAMP], r[EPOCH], r[UNTIL], r[WORKER] = 'D', now, epoch, now + (ttl or r[DEAD_TTL]), ''
  r[FLAGS] = is_exhausted and bor(r[FLAGS], EXHAUSTED) or r[FLAGS]
  redis.call('ZADD', tag .. ':dead', now, id)
  ended[#ended + 1], ended[#ended + 2] = r[UNTIL], id
  count('D', 1)
  note('d', id)
  reply(id, r, 'R' .. r[NONCE])
  if r[FLAGS] >= SIDE then side().close(id, r, from, 'F', 'f') end
end

return {
  announce = announce, clear_purged = clear_purged, drop = drop, expire = expire, fail = fail, remember = remember,
  side = side, tidy = tidy, tombstone = tombstone, window_end = window_end,
}
