-- What set_limits fixed: how often and how many at once may be claimed, how many may wait.

-- Read anew what the prelude has at hand: every local that a part uses costs the scripts that never make it.
local set = redis.call('HMGET', tag .. ':meta', 'limits', 'core')
local rate, rate_ms, concurrency, length = struct.unpack('<I6I6I6I6', set[1] or string.rep('\0', 30))
local q, w, s, p, r = struct.unpack(COUNTS, set[2] or string.rep('\0', 69), COUNTS_AT)

-- The bucket as one number, the microsecond at which it would be full again (GCRA).
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2] + ARGV[1] * 1000
local interval, burst, full_at = 0, 1, micros
if rate > 0 then
  interval, burst = rate_ms * 1000 / rate, math.max(1, rate * BURST_MS / rate_ms)
  local stored = tonumber(redis.call('HGET', tag .. ':meta', 'full_at') or 0)
  full_at = math.max(stored, micros)
  if full_at > micros + burst * interval + 1 then
    -- Never more than one bucket ahead, whatever the clock or the limit was before.
    full_at = micros + burst * interval
    redis.call('HSET', tag .. ':meta', 'full_at', string.format('%.3f', full_at))
  end
end

-- How long the next token takes, ms; 0 when it is there.
local function token_ms()
  return math.max(0, math.ceil((full_at - (burst - 1) * interval - micros - 0.5) / 1000))
end

-- Whether a claim has to wait: nil when not, else how many ms for a token, 0 when for a slot.
local function held()
  if concurrency > 0 and p + (counts.P or 0) >= concurrency then return 0 end
  local wait = token_ms()
  return wait > 0 and wait or nil
end

local function spend()
  if rate == 0 then return end
  full_at = full_at + interval
  redis.call('HSET', tag .. ':meta', 'full_at', string.format('%.3f', full_at))
end

-- How many more jobs the queue takes.
local function room() return length - (q + w + s + r) end

return {held = held, length = length, room = room, spend = spend, token_ms = token_ms}
