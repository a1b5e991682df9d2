-- include: ends sweep
-- Cancel jobs that do not run; ask the holders of those that do.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] running  "1" to ask the holder of a running job to stop
-- ARGV[3..] per job: id, nonce of the incarnation that is meant, or ''
-- Returns per id: its status
local asked = ARGV[2] == '1'
local answers, entries, touched = {}, {}, (#ARGV - 2) / 2
ends().tidy(2 * touched)
ends().expire(2 * touched, {})
local NAMES = {C = 'completed', D = 'failed', P = 'processing'}
for i = 3, #ARGV, 2 do
  local id, nonce = ARGV[i], ARGV[i + 1]
  local r = decode(redis.call('HGET', tag .. ':jobs', id))
  local answer = 'not_found'
  if r and is_live(r) and (nonce == '' or nonce == r[NONCE]) then
    if r[STATE] == 'P' and asked and may(MAY.cancel, 'P') then
      if has(r[FLAGS], CANCEL) == 0 then
        r[FLAGS] = bor(r[FLAGS], CANCEL)
        redis.call('HSET', tag .. ':jobs', id, encode(r))
        note('X', id)
      end
      answer = 'cancelling'
    elseif r[STATE] ~= 'P' and may(MAY.cancel, r[STATE]) then
      ends().drop(id, r, 'c')
      note('x', id)
      answer = 'cancelled'
    else
      answer = NAMES[r[STATE]]
    end
  end
  answers[#answers + 1] = answer
end
sweep().sweep(touched)
finish()
return answers
