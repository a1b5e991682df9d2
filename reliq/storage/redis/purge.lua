-- include: ends registry removal
-- Make every job that is not processing absent, in constant time: reaps carry the records out.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- Returns how many jobs that were
local purged = removal().purge()
finish()
return purged
