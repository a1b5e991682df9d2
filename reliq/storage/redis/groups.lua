-- The lines of groups. A line holds all unfinished jobs of its group by their sequence; its first ones, as many as
-- may be out of the line at once, are its head. A queued job behind the head is in :blocked and in no list.

local MAX_HEAD <const> = 1000
local MAX_EXTRA <const> = 2000
local lines, purged, width, widest = {}, nil, nil, nil
local extra = 0

local function measure()
  if width then return end
  local fields = redis.call('HMGET', tag .. ':meta', 'purged', 'limits', 'widest')
  purged, widest = tonumber(fields[1] or 0), tonumber(fields[3] or 1)
  width = fields[2] and string.sub(tag, -6) ~= '.fifo}' and struct.unpack('<I6', fields[2], 25) or 1
end

-- The key of a line. A purge leaves lines as they are: whoever touches one first takes out what the purge
-- made absent. Jobs that were processing then stay, whatever became of them; they are at its front, and stand before
-- all later ones.
local function line(group)
  local key = tag .. ':group:' .. group
  if lines[group] then return key end
  lines[group] = true
  measure()
  if purged == 0 or #redis.call('ZRANGEBYSCORE', key, '-inf', text(purged), 'LIMIT', 0, 1) == 0 then return key end
  local kept = {}
  for _, id in ipairs(redis.call('ZRANGE', key, 0, math.min(widest, MAX_HEAD) - 1)) do
    local r = decode(redis.call('HGET', tag .. ':jobs', id))
    if r and not may('CD', r[STATE]) and is_live(r) then kept[#kept + 1] = id end
  end
  redis.call('UNLINK', key)
  for i, id in ipairs(kept) do redis.call('ZADD', key, purged + i / (#kept + 1), id) end
  return key
end

-- Those who came to the head are placed: one for each end, and more only where a limit was raised. Of very many a
-- later end places the rest.
local function advance(key)
  if has(switches, BLOCKED) == 0 then return end
  local head = redis.call('ZRANGE', key, math.max(0, width - MAX_HEAD), width - 1)
  if #head == 0 then return end
  local blocked, is_first = redis.call('ZMSCORE', tag .. ':blocked', unpack(head)), true
  for i, other in ipairs(head) do
    local r = blocked[i] and (is_first or extra < MAX_EXTRA) and decode(redis.call('HGET', tag .. ':jobs', other))
    if r and r[STATE] == 'Q' and r[EPOCH] == epoch then
      redis.call('ZREM', tag .. ':blocked', other)
      count('Q', -1)
      place(backs, other, r)
      save(other, r)
      if not is_first then extra = extra + 1 end
      is_first = false
    end
  end
end

local function is_within(key, rank)
  if rank >= width then return false end
  -- A limit that was raised lets go of those before it, and they come first.
  if width > 1 then advance(key) end
  return true
end

-- A new job joins its group's line; whether it is of the head.
local function join(id, s)
  local key = line(s.group)
  redis.call('ZADD', key, text(s.sequence), id)
  return is_within(key, redis.call('ZCARD', key) - 1)
end

local function is_head(id, s)
  local key = line(s.group)
  local rank = redis.call('ZRANK', key, id)
  if not rank then
    redis.call('ZADD', key, text(s.sequence), id)
    rank = redis.call('ZRANK', key, id)
  end
  return is_within(key, rank)
end

-- A queued job has to wait for its group.
local function hold(id, s)
  redis.call('ZADD', tag .. ':blocked', text(s.sequence), id)
  switches = bor(switches, BLOCKED)
end

local function block(id, r, s)
  back = back + 1
  r[STATE], r[POSITION], r[STAMP], r[EPOCH], r[SERIAL], r[WORKER] = 'Q', back, now, epoch, 0, ''
  count('Q', 1)
  hold(id, s)
end

-- A job has ended or goes: it leaves the line, and others come to the head.
local function leave(id, s)
  local key = line(s.group)
  redis.call('ZREM', key, id)
  redis.call('ZREM', tag .. ':blocked', id)
  advance(key)
end

-- How many queued jobs are blocked now.
local function blocked()
  local number = redis.call('ZCARD', tag .. ':blocked')
  if number == 0 then switches = band(switches, 255 - BLOCKED) end
  return number
end

-- A dead letter comes back: at the line's end, with a new sequence.
local function rejoin(id, s)
  back = back + 1
  s.sequence = back
  join(id, s)
end

return {block = block, blocked = blocked, hold = hold, is_head = is_head, join = join, leave = leave, rejoin = rejoin}
