-- A heartbeat: registers the worker, renews its leases, lists what it should know.
-- In:  INSERT INTO extend (now_ms, qid, worker, runners, ttl_ms, lease_ms, held, below, in_flight)
--      held: JSON [[id, hex of nonce, token], ...]; in_flight: JSON [serial, ...]
-- Out: extend_out: kind 'lost' or 'cancelled' with n, the index in held; 'orphan' with id, nonce, token.
CREATE TEMP TABLE extend_held (n INTEGER PRIMARY KEY, key INTEGER, is_cancelling INTEGER);
CREATE TEMP TABLE extend_out (kind TEXT, n INTEGER, id TEXT, nonce BLOB, token INTEGER);
CREATE TEMP VIEW extend AS
SELECT 0 AS now_ms, 0 AS qid, '' AS worker, 0 AS runners, 0 AS ttl_ms, 0 AS lease_ms, '' AS held, 0 AS below,
       '' AS in_flight;
CREATE TEMP TRIGGER extend_do INSTEAD OF INSERT ON extend BEGIN
    DELETE FROM extend_held;
    DELETE FROM extend_out;
    INSERT INTO worker (qid, worker, runners, ttl_ms, deadline_ms)
    VALUES (NEW.qid, NEW.worker, NEW.runners, NEW.ttl_ms, NEW.now_ms + NEW.ttl_ms)
    ON CONFLICT DO UPDATE
    SET runners = excluded.runners, ttl_ms = excluded.ttl_ms, deadline_ms = excluded.deadline_ms, has_grace = 0;

    INSERT INTO extend_held
    SELECT h.key, job.key, job.is_cancelling
    FROM json_each(NEW.held) AS h CROSS JOIN job ON job.qid = NEW.qid AND job.id = json_extract(h.value, '$[0]')
    WHERE job.{may:extend} AND job.holder = NEW.worker
      AND hex(job.nonce) = json_extract(h.value, '$[1]') AND job.token = json_extract(h.value, '$[2]');
    UPDATE job SET lease_ms = NEW.now_ms + NEW.lease_ms
    WHERE key IN (SELECT key FROM extend_held) AND lease_ms < NEW.now_ms + NEW.lease_ms;

    INSERT INTO extend_out (kind, n) SELECT 'cancelled', n FROM extend_held WHERE is_cancelling;
    INSERT INTO extend_out (kind, n)
    SELECT 'lost', key FROM json_each(NEW.held) WHERE key NOT IN (SELECT n FROM extend_held);
    INSERT INTO extend_out (kind, id, nonce, token)
    SELECT 'orphan', id, nonce, token FROM job
    WHERE qid = NEW.qid AND holder = NEW.worker AND {may:extend} AND serial < NEW.below
      AND serial NOT IN (SELECT value FROM json_each(NEW.in_flight))
      AND key NOT IN (SELECT key FROM extend_held);
END;
