-- Stale entries of the pending lists: what cancel and re-enqueue leave behind. Claims skip them; this
-- keeps their number bounded where nobody claims.

local STEP <const> = 500
local SHORT <const> = 1000

-- Drop stale entries once they could outnumber the live ones: a short list at once, a long one by
-- a cursor, STEP entries for each of `steps`; what is stale is marked, and removed when the cursor is through.
local function sweep(steps)
  local live = queued + (counts.Q or 0)
  if has(switches, BLOCKED) ~= 0 then live = live - redis.call('ZCARD', tag .. ':blocked') end
  for prio = 0, 9 do
    if has(prios, 2 ^ prio) ~= 0 then
      local key, cursor_name = pending_key(prio), 'sweep:' .. prio
      local length = redis.call('LLEN', key)
      local is_short = length <= SHORT
      if (is_short and length > live) or length > 1.5 * live + SHORT / 2 then
        local cursor = is_short and 0 or tonumber(redis.call('HGET', tag .. ':meta', cursor_name) or 0)
        local budget, has_marks = is_short and SHORT or STEP * steps, false
        while budget > 0 and cursor < length do
          local entries = redis.call('LRANGE', key, cursor, cursor + STEP - 1)
          local names = {}
          for i, entry in ipairs(entries) do names[i] = string.sub(entry, (string.find(entry, ':', 1, true) or 0) + 1) end
          local raws = redis.call('HMGET', tag .. ':jobs', unpack(names))
          for i, entry in ipairs(entries) do
            local r = decode(raws[i])
            local position = string.match(entry, '^(%-?%d+):')
            if not (r and r[STATE] == 'Q' and r[EPOCH] == epoch and r[POSITION] == tonumber(position)) then
              redis.call('LSET', key, cursor + i - 1, 'x')
              has_marks = true
            end
          end
          cursor, budget = cursor + #entries, budget - #entries
        end
        if cursor >= length then
          redis.call('LREM', key, 0, 'x')
          cursor = 0
        end
        if not is_short then redis.call('HSET', tag .. ':meta', cursor_name, cursor) end
      end
    end
  end
end

return {sweep = sweep}
