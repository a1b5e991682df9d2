-- include: ends
-- Records as they are.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] payload  "1" to return messages and results too
-- ARGV[3] nonce    of the incarnation whose end is asked for, or ''
-- ARGV[4..] ids
-- Returns per id: record or '', cause letter, due or '', message, result or '', has result "1" | "0", packed errors or '',
--         sequence and group or '', and "p" and its progress or ''
local wants_payload, nonce, answers = ARGV[2] == '1', ARGV[3], {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local raw = redis.call('HGET', tag .. ':jobs', id)
  local r = decode(raw)
  local live, cause = false, nil
  if r then live, cause = is_live(r) end
  local record, letter, due_at, message, result, has_result, errors, place, progress = '', 'u', '', '', '', '0', '', '', ''
  if live and (nonce == '' or nonce == r[NONCE]) then
    record = encode(r)
    if r[STATE] == 'S' or r[STATE] == 'R' then due_at = redis.call('ZSCORE', tag .. ':scheduled', id) or '' end
    if wants_payload then message = redis.call('HGET', tag .. ':messages', id) or '' end
    if r[STATE] == 'C' and now < r[UNTIL] then
      local found = redis.call('HGET', tag .. ':results', id)
      if found and wants_payload then has_result, result = '1', found end
    end
    if has(r[FLAGS], SIDE) ~= 0 then
      local s = ends().side().entry(id)
      if s and s.group then place = struct.pack('<I6', s.sequence) .. s.group end
      local data = redis.call('HGET', tag .. ':progress', id)
      if data then progress = 'p' .. data end
    end
    local history = redis.call('HGET', tag .. ':errors', id)
    if history then
      for _, error in ipairs(cmsgpack.unpack(history)) do
        errors = errors .. struct.pack('<I8I2I2I4', error[1], #error[2], error[3], #error[4]) .. error[2] .. error[4]
      end
    end
  elseif r and not live and (nonce == '' or nonce == r[NONCE]) then
    letter = cause
  else
    local _, _, _, known = ends().tombstone(redis.call('HGET', tag .. ':gone', id), nonce ~= '' and nonce or nil)
    letter = known or 'u'
  end
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = record, letter, due_at, message
  answers[n + 5], answers[n + 6], answers[n + 7] = result, has_result, errors
  answers[n + 8], answers[n + 9] = place, progress
end
return answers
