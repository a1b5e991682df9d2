-- Accepts each job whose id is free.
-- In:  enqueue_in: one row per job, each id once; due_ms is when it may run.
--      INSERT INTO enqueue (now_ms, qid, waited_ms)     waited_ms > 0: somebody waits until then
-- Out: enqueue_out per n: status 'new' (accepted now), 'queued' (accepted before, by this nonce),
--      'duplicate' or 'completed' (result); state, nonce: of the incarnation under the id;
--      key: of the record that was replaced.
CREATE TEMP TABLE enqueue_in (
    n INTEGER PRIMARY KEY, id TEXT, nonce BLOB, message BLOB, max_attempts INTEGER, result_ttl_ms INTEGER,
    dedup_ttl_ms INTEGER, dead_ttl_ms INTEGER, priority INTEGER, due_ms INTEGER
);
CREATE TEMP TABLE enqueue_out (
    n INTEGER PRIMARY KEY, key INTEGER, status TEXT NOT NULL, state TEXT NOT NULL, nonce BLOB NOT NULL, result BLOB
);
CREATE TEMP VIEW enqueue AS SELECT 0 AS now_ms, 0 AS qid, 0 AS waited_ms;
CREATE TEMP TRIGGER enqueue_do INSTEAD OF INSERT ON enqueue BEGIN
    DELETE FROM enqueue_out;
    DELETE FROM change;

    -- The same nonce again: the first answer again, whatever became of the record.
    INSERT INTO enqueue_out (n, key, status, state, nonce)
    SELECT i.n, job.key, 'queued',
           CASE WHEN {live} THEN job.state WHEN job.is_delayed THEN 'scheduled' ELSE 'queued' END, i.nonce
    FROM enqueue_in AS i CROSS JOIN job ON job.qid = NEW.qid AND job.id = i.id
    WHERE job.nonce = i.nonce;
    INSERT OR IGNORE INTO enqueue_out (n, key, status, state, nonce)
    SELECT i.n, NULL, 'queued', iif(t.is_delayed, 'scheduled', 'queued'), i.nonce
    FROM enqueue_in AS i CROSS JOIN tombstone AS t ON t.qid = NEW.qid AND t.id = i.id AND t.nonce = i.nonce
    WHERE t.until_ms > NEW.now_ms;

    -- The id is taken.
    INSERT OR IGNORE INTO enqueue_out (n, key, status, state, nonce, result)
    SELECT i.n, job.key,
           iif(job.state = 'completed' AND job.result_until_ms > NEW.now_ms, 'completed', 'duplicate'), job.state, job.nonce,
           iif(job.state = 'completed' AND job.result_until_ms > NEW.now_ms, job.result, NULL)
    FROM enqueue_in AS i CROSS JOIN job ON job.qid = NEW.qid AND job.id = i.id
    WHERE {live}
      AND (NOT job.{may:enqueue} OR job.state = 'completed' AND job.dedup_until_ms > NEW.now_ms);

    -- The rest is accepted; what stood there before goes.
    INSERT OR IGNORE INTO enqueue_out (n, key, status, state, nonce)
    SELECT i.n, job.key, 'new', iif(i.due_ms > NEW.now_ms, 'scheduled', 'queued'), i.nonce
    FROM enqueue_in AS i LEFT JOIN job ON job.qid = NEW.qid AND job.id = i.id;
    INSERT INTO gone (key, cause)
    SELECT key, CASE WHEN {live} THEN 'replaced' WHEN {unpurged} THEN 'expired' ELSE 'purged' END
    FROM enqueue_out JOIN job USING (key) WHERE status = 'new';
    INSERT INTO remove SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM gone);

    INSERT INTO job (qid, id, nonce, state, epoch, priority, position, size, is_delayed, max_attempts, created_ms,
                     updated_ms, due_ms, waited_ms, result_ttl_ms, dedup_ttl_ms, dead_ttl_ms)
    SELECT NEW.qid, i.id, i.nonce, o.state, q.epoch, i.priority, q.back + i.n, length(i.message),
           o.state = 'scheduled', i.max_attempts, NEW.now_ms, NEW.now_ms,
           iif(o.state = 'scheduled', i.due_ms, NULL), NEW.waited_ms, i.result_ttl_ms, i.dedup_ttl_ms, i.dead_ttl_ms
    FROM enqueue_out AS o CROSS JOIN enqueue_in AS i USING (n) CROSS JOIN queue AS q
    WHERE o.status = 'new' AND q.qid = NEW.qid
    ORDER BY o.n;
    INSERT INTO message (key, message)
    SELECT job.key, i.message
    FROM enqueue_out AS o CROSS JOIN enqueue_in AS i USING (n) CROSS JOIN job ON job.qid = NEW.qid AND job.id = i.id
    WHERE o.status = 'new';
    UPDATE job SET waited_ms = max(waited_ms, NEW.waited_ms)
    WHERE NEW.waited_ms > 0 AND key IN (SELECT key FROM enqueue_out WHERE status <> 'new') AND expires_ms IS NULL;

    UPDATE queue
    SET is_listed = 1, back = back + o.n, n_queued = n_queued + o.queued, n_scheduled = n_scheduled + o.scheduled
    FROM (
        SELECT max(n) + 1 AS n, count(*) FILTER (WHERE status = 'new' AND state = 'queued') AS queued,
               count(*) FILTER (WHERE status = 'new' AND state = 'scheduled') AS scheduled
        FROM enqueue_out
    ) AS o
    WHERE qid = NEW.qid;

    INSERT INTO sweep SELECT NEW.now_ms, NEW.qid, 2 * count(*) FROM enqueue_in;
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, o.state, i.id FROM enqueue_out AS o JOIN enqueue_in AS i USING (n)
    WHERE {listened} AND o.status = 'new' ORDER BY o.n;
    INSERT INTO event (qid, at_s, name, id) SELECT NEW.qid, {clock_s}, event, id FROM change WHERE {listened} ORDER BY n;
END;
