-- Stop or resume the handing out of jobs.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] paused  "1" | "0"
-- Returns nothing
paused = tonumber(ARGV[2])
must_ring = paused == 0 and queued > 0
finish()
