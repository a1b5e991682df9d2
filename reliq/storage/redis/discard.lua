-- include: ends
-- Remove dead letters for good.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2..] ids
-- Returns the ids that were removed
local removed = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local r = decode(redis.call('HGET', tag .. ':jobs', id))
  if r and is_live(r) and may(MAY.discard, r[STATE]) then
    ends().drop(id, r, 'd')
    note('k', id)
    removed[#removed + 1] = id
  end
end
finish()
return removed
