-- A page of the ids in one state.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] state   letter
-- ARGV[3] list    which list or worker of that state, counted from 0
-- ARGV[4] offset  in it
-- ARGV[5] limit
-- Returns next list, next offset ('' when done), then the ids
local state, list, offset, limit = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local ids, sources, stop = {}, {}, offset + limit - 1

if state == 'Q' then
  for prio = 9, 0, -1 do sources[#sources + 1] = pending_key(prio) end
  sources[#sources + 1] = tag .. ':blocked'
elseif state == 'W' then sources = {tag .. ':waiting'}
elseif state == 'P' then
  for _, worker in ipairs(redis.call('ZRANGE', tag .. ':workers', 0, -1)) do sources[#sources + 1] = tag .. ':processing:' .. worker end
elseif state == 'S' or state == 'R' then sources = {tag .. ':scheduled'}
elseif state == 'C' then sources = {tag .. ':expiry'}
elseif state == 'D' then sources = {tag .. ':dead'} end

local key = sources[list + 1]
if not key then return {'', ''} end
local is_list = state == 'Q' and key ~= tag .. ':blocked'
local found = redis.call(is_list and 'LRANGE' or 'ZRANGE', key, offset, stop)
for _, entry in ipairs(found) do
  local position, id = nil, entry
  if is_list then position, id = string.match(entry, '^(%-?%d+):(.*)$') end
  local r = id and decode(redis.call('HGET', tag .. ':jobs', id))
  if r and r[STATE] == state and is_live(r) and (not is_list or r[POSITION] == tonumber(position)) then ids[#ids + 1] = id end
end
local next_list, next_offset = list, offset + #found
if #found < limit then next_list, next_offset = list + 1, 0 end
if next_list >= #sources then next_list, next_offset = '', '' end
return {tostring(next_list), tostring(next_offset), unpack(ids)}
