-- The registry of workers.

-- A worker is alive until its score in :workers; :runners holds "runners:ttl" of each, with a
-- mark behind it once it was given grace that no heartbeat has answered yet.
local function register(worker, threads, ttl, is_heartbeat)
  local is_new = redis.call('ZADD', tag .. ':workers', 'GT', now + ttl, worker) == 1
  if is_new or is_heartbeat then
    if is_new then runners = runners + threads end
    redis.call('HSET', tag .. ':runners', worker, threads .. ':' .. ttl)
  end
end

local function unregister(worker)
  if redis.call('ZREM', tag .. ':workers', worker) == 1 then
    local entry = redis.call('HGET', tag .. ':runners', worker) or '0:0'
    runners = math.max(0, runners - tonumber(string.match(entry, '^%d+')))
    redis.call('HDEL', tag .. ':runners', worker)
  end
end

return {register = register, unregister = unregister}
