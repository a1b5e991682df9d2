-- A queue that holds nothing and that nobody serves leaves nothing behind, once a reap or the last worker sees it.

-- Its numbers begin anew with the next job. A paused or limited queue keeps them, and so does one that had groups:
-- their sequence numbers rise for good.
local function clear()
  if switches ~= 0 or is_listened then return end
  if redis.call('EXISTS', tag .. ':jobs', tag .. ':workers', tag .. ':ticks', tag .. ':cascades') > 0 then return end
  if redis.call('HEXISTS', tag .. ':meta', 'limits') == 1 then return end
  redis.call('UNLINK', tag .. ':meta', tag .. ':wake', tag .. ':due-wake')
  -- Entries that were left behind.
  for prio = 0, 9 do redis.call('UNLINK', pending_key(prio)) end
end

return {clear = clear}
