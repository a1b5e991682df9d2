-- Takes jobs back from holders that are gone. A part of `reap` and `leave`.
-- In:  stalled (key): processing jobs.
--      INSERT INTO recover (now_ms, qid)
-- Out: change ('stalled' | 'failed' | 'cancelled', id), then those of `follow`.
CREATE TEMP TABLE stalled (key INTEGER PRIMARY KEY, state TEXT, place INTEGER);
CREATE TEMP VIEW recover AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER recover_do INSTEAD OF INSERT ON recover BEGIN
    -- A neighbour's crash does not count; the job is claimed alone from then on.
    UPDATE stalled SET state = CASE WHEN job.is_cancelling THEN 'absent' WHEN job.is_batch THEN 'queued'
                                    WHEN job.attempts >= job.max_attempts AND NOT {persistent} THEN 'failed'
                                    ELSE 'queued' END
    FROM job WHERE job.key = stalled.key;
    -- To the front, in the order in which they stood.
    UPDATE stalled SET place = (SELECT front FROM queue WHERE qid = NEW.qid) - r.n
    FROM (
        SELECT key, row_number() OVER (ORDER BY position DESC) AS n
        FROM stalled AS s CROSS JOIN job USING (key) WHERE s.state = 'queued'
    ) AS r
    WHERE stalled.key = r.key;
    INSERT INTO change (event, id)
    SELECT CASE s.state WHEN 'absent' THEN 'cancelled' WHEN 'failed' THEN 'failed' ELSE 'stalled' END, job.id
    FROM stalled AS s CROSS JOIN job USING (key) ORDER BY job.position;

    INSERT OR REPLACE INTO error (key, token, at_ms, worker, attempt, error)
    SELECT key, job.token, NEW.now_ms, job.holder, job.attempts,
           CAST(json_object('type', 'StalledError', 'message', 'the worker stopped renewing its lease', 'traceback', '') AS BLOB)
    FROM stalled AS s CROSS JOIN job USING (key) WHERE s.state <> 'absent' AND NOT job.is_batch;
    DELETE FROM error
    WHERE key IN (SELECT key FROM stalled) AND token <= (
        SELECT e.token FROM error AS e WHERE e.key = error.key ORDER BY e.token DESC LIMIT 1 OFFSET {history}
    );

    UPDATE job SET attempts = {steady}
    WHERE key IN (SELECT key FROM stalled) AND NOT is_batch AND {persistent};
    UPDATE job
    SET state = s.state, updated_ms = NEW.now_ms, epoch = q.epoch, holder = NULL, serial = NULL, lease_ms = NULL,
        attempts = job.attempts - job.is_batch, is_solo = max(job.is_solo, job.is_batch), is_batch = 0,
        is_exhausted = s.state = 'failed', position = ifnull(s.place, job.position),
        expires_ms = iif(s.state = 'failed', NEW.now_ms + job.dead_ttl_ms, NULL),
        sweep_ms = iif(s.state = 'failed', NEW.now_ms + job.dead_ttl_ms, NULL)
    FROM stalled AS s CROSS JOIN queue AS q
    WHERE job.key = +s.key AND s.state <> 'absent' AND q.qid = NEW.qid;
    UPDATE queue
    SET n_processing = n_processing - s.n, n_queued = n_queued + s.queued, n_failed = n_failed + s.n - s.queued,
        front = front - s.queued
    FROM (SELECT count(*) AS n, count(place) AS queued FROM stalled WHERE state <> 'absent') AS s
    WHERE qid = NEW.qid;

    INSERT INTO gone (key, cause) SELECT key, 'cancelled' FROM stalled WHERE state = 'absent';
    INSERT INTO ended (key, id, grp, cause)
    SELECT key, job.id, tie.grp, 'failed' FROM stalled AS s CROSS JOIN job USING (key) LEFT JOIN tie USING (key)
    WHERE s.state = 'failed' AND (SELECT is_coupled FROM queue WHERE qid = NEW.qid);
    DELETE FROM stalled;
    INSERT INTO remove SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM gone);
    INSERT INTO follow SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM ended);
END;
