-- Stop or resume the handing out of jobs.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] paused  "1" | "0"
-- Returns nothing
switches = bor(band(switches, 255 - PAUSED), ARGV[2] == '1' and PAUSED or 0)
must_ring = has(switches, PAUSED) == 0 and queued > 0
finish()
