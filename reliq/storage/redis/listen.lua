-- Ask the transitions to publish events for a while.
--
-- KEYS[1] tag STRING
-- ARGV[1] skew
-- ARGV[2] ms
-- Returns nothing
listen = now - ARGV[1] + ARGV[2]
finish()
