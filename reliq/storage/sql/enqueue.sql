-- Accepts each job whose id is free.
-- In:  enqueue_in: one row per job, each id once; due_ms is when it may run; waited_ms > 0: somebody waits until then.
--      has_ties: some have ties, JSON {group, after: [id, ...] (none of a later row), is_persistent}.
--      INSERT INTO enqueue (now_ms, qid, has_ties), or for one job enqueue_alone (these, and the columns after n)
-- Out: enqueue_out: a row for each n that is not simply a new job, queued now. status: 'new' (accepted now),
--      'queued' (accepted before, by this nonce), 'duplicate', 'completed' (result) or, for all of them, 'full' (nothing
--      was written); state, nonce: of the incarnation under the id; key: of the record that stood there; news, on one of
--      those: JSON [[event, id], ...] of what followed; ('ready', ''): something became claimable.
CREATE TEMP TABLE enqueue_in (
    n INTEGER PRIMARY KEY, id TEXT, nonce BLOB, message BLOB, max_attempts INTEGER, result_ttl_ms INTEGER,
    dedup_ttl_ms INTEGER, dead_ttl_ms INTEGER, priority INTEGER, due_ms INTEGER, waited_ms INTEGER,
    ties TEXT
);
CREATE TEMP TABLE enqueue_out (
    n INTEGER PRIMARY KEY, key INTEGER, status TEXT NOT NULL, state TEXT NOT NULL, nonce BLOB NOT NULL, result BLOB,
    news TEXT
);
CREATE TEMP VIEW enqueue AS SELECT 0 AS now_ms, 0 AS qid, 0 AS has_ties;
CREATE TEMP VIEW enqueue_full AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP VIEW enqueue_news AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP VIEW enqueue_known AS SELECT 0 AS now_ms, 0 AS qid, 0 AS has_ties;
CREATE TEMP VIEW enqueue_after AS SELECT 0 AS now_ms, 0 AS qid, 0 AS has_ties;
CREATE TEMP TRIGGER enqueue_do INSTEAD OF INSERT ON enqueue BEGIN
    DELETE FROM enqueue_out;

    -- The same nonce again: the first answer again, also when the record is gone.
    INSERT INTO enqueue_out (n, status, state, nonce)
    SELECT i.n, 'queued', CASE t.is_delayed WHEN 0 THEN 'queued' WHEN 1 THEN 'scheduled' ELSE 'waiting' END, i.nonce
    FROM enqueue_in AS i CROSS JOIN tombstone AS t ON t.qid = NEW.qid AND t.id = i.id AND t.nonce = i.nonce
    WHERE EXISTS (SELECT 1 FROM tombstone) AND t.until_ms > NEW.now_ms;

    -- What stands under the id: this very job, one that keeps the id, or one that makes room.
    INSERT OR IGNORE INTO enqueue_out (n, key, status, state, nonce)
    SELECT i.n, job.key,
           CASE WHEN job.nonce = i.nonce THEN 'queued'
                WHEN {live} AND (NOT job.{may:enqueue} OR job.state = 'completed' AND job.dedup_until_ms > NEW.now_ms)
                THEN iif(job.state = 'completed' AND job.result_until_ms > NEW.now_ms, 'completed', 'duplicate')
                ELSE 'new' END,
           CASE WHEN {live} THEN job.state WHEN job.is_delayed = 0 THEN 'queued' WHEN job.is_delayed = 1 THEN 'scheduled'
                ELSE 'waiting' END, job.nonce
    FROM enqueue_in AS i CROSS JOIN job ON job.qid = NEW.qid AND job.id = i.id;
    INSERT OR IGNORE INTO enqueue_out (n, status, state, nonce)
    SELECT n, 'new', 'scheduled', nonce FROM enqueue_in WHERE due_ms > NEW.now_ms;
    INSERT INTO enqueue_known
    SELECT NEW.now_ms, NEW.qid, NEW.has_ties FROM queue
    WHERE qid = NEW.qid AND (is_bounded OR NEW.has_ties OR EXISTS (SELECT 1 FROM enqueue_out));

    -- `back` only rises, so what is added to it names a job for ever.
    INSERT INTO job (key, qid, id, nonce, state, epoch, priority, position, size, is_delayed, max_attempts, created_ms,
                     updated_ms, due_ms, waited_ms, result_ttl_ms, dedup_ttl_ms, dead_ttl_ms, message)
    SELECT (NEW.qid << 40) + (SELECT back FROM queue WHERE qid = NEW.qid) + i.n, NEW.qid, i.id, i.nonce,
           ifnull(o.state, 'queued'), (SELECT epoch FROM queue WHERE qid = NEW.qid), i.priority,
           (SELECT back FROM queue WHERE qid = NEW.qid) + i.n, length(i.message),
           o.state IS 'scheduled', i.max_attempts, NEW.now_ms, NEW.now_ms,
           iif(o.state = 'scheduled', i.due_ms, NULL), i.waited_ms, i.result_ttl_ms,
           i.dedup_ttl_ms, i.dead_ttl_ms, iif(length(i.message) <= {inline_bytes}, i.message, NULL)
    FROM enqueue_in AS i LEFT JOIN enqueue_out AS o USING (n)
    WHERE o.status IS NULL OR o.status = 'new';
    INSERT INTO message (key, message)
    SELECT (NEW.qid << 40) + (SELECT back FROM queue WHERE qid = NEW.qid) + i.n, i.message
    FROM enqueue_in AS i LEFT JOIN enqueue_out AS o USING (n)
    WHERE length(i.message) > {inline_bytes} AND (o.status IS NULL OR o.status = 'new');
    UPDATE queue
    SET is_listed = 1, back = back + (SELECT ifnull(max(n), 0) + 1 FROM enqueue_in),
        n_queued = n_queued + (SELECT count(*) FROM enqueue_in)
                 - (SELECT count(*) FROM enqueue_out WHERE state <> 'queued' OR status NOT IN ('new', 'full')),
        n_scheduled = n_scheduled + (SELECT count(*) FROM enqueue_out WHERE status = 'new' AND state = 'scheduled')
    WHERE qid = NEW.qid;

    INSERT INTO enqueue_after
    SELECT NEW.now_ms, NEW.qid, NEW.has_ties WHERE NEW.has_ties OR {listened} OR {overdue};
END;

-- All or nothing: rows that are refused leave the stage.
CREATE TEMP TRIGGER enqueue_full_do INSTEAD OF INSERT ON enqueue_full BEGIN
    DELETE FROM enqueue_out;
    INSERT INTO enqueue_out (n, status, state, nonce) SELECT n, 'full', 'queued', nonce FROM enqueue_in;
    DELETE FROM enqueue_in;
END;

CREATE TEMP TRIGGER enqueue_known_do INSTEAD OF INSERT ON enqueue_known BEGIN
    INSERT INTO enqueue_full
    SELECT NEW.now_ms, NEW.qid
    FROM queue JOIN limits USING (qid) CROSS JOIN (
        SELECT (SELECT count(*) FROM enqueue_in) - (SELECT count(*) FROM enqueue_out WHERE status <> 'new') AS n
    ) AS new
    WHERE qid = NEW.qid AND new.n > 0
      AND n_waiting + n_scheduled + n_queued + n_blocked + n_failing + new.n > max_length;

    DELETE FROM change;
    INSERT INTO gone (key, cause)
    SELECT key, CASE WHEN {live} THEN 'replaced' WHEN {unpurged} THEN 'expired' ELSE 'purged' END
    FROM enqueue_out CROSS JOIN job USING (key) WHERE status = 'new';
    UPDATE enqueue_out SET result = (SELECT result FROM job WHERE job.key = enqueue_out.key) WHERE status = 'completed';
    UPDATE job SET waited_ms = max(job.waited_ms, i.waited_ms)
    FROM enqueue_out AS o CROSS JOIN enqueue_in AS i USING (n)
    WHERE job.key = o.key AND o.status <> 'new' AND i.waited_ms > 0 AND job.expires_ms IS NULL;
    UPDATE enqueue_out
    SET (state, nonce) = (SELECT CASE WHEN json_extract(ties, '$.after') IS NOT NULL THEN 'waiting' WHEN due_ms > NEW.now_ms THEN 'scheduled'
                                ELSE 'queued' END, nonce FROM enqueue_in AS i WHERE i.n = enqueue_out.n)
    WHERE status = 'new';
    INSERT INTO remove SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM gone);
    INSERT INTO enqueue_news SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM change);
    INSERT INTO enqueue_out (n, status, state, nonce)
    SELECT n, 'new', 'waiting', nonce FROM enqueue_in WHERE NEW.has_ties AND json_extract(ties, '$.after') IS NOT NULL
    ON CONFLICT (n) DO UPDATE SET state = 'waiting' WHERE status = 'new';
END;

CREATE TEMP TRIGGER enqueue_after_do INSTEAD OF INSERT ON enqueue_after BEGIN
    DELETE FROM change;
    INSERT INTO sweep SELECT NEW.now_ms, NEW.qid, 2 * count(*) FROM enqueue_in;
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, ifnull(o.state, 'queued'), i.id
    FROM enqueue_in AS i LEFT JOIN enqueue_out AS o USING (n)
    WHERE {listened} AND (o.status IS NULL OR o.status = 'new' AND o.state <> 'waiting') ORDER BY i.n;
    INSERT INTO enqueue_ties SELECT NEW.now_ms, NEW.qid WHERE NEW.has_ties AND EXISTS (SELECT 1 FROM enqueue_in);
    INSERT INTO enqueue_news SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM change);
END;

-- What followed for others.
CREATE TEMP TRIGGER enqueue_news_do INSTEAD OF INSERT ON enqueue_news BEGIN
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, event, id FROM change WHERE {listened} AND {told} ORDER BY n;
    INSERT INTO enqueue_out (n, status, state, nonce, news)
    SELECT i.n, 'new', 'queued', i.nonce, (
        SELECT json_group_array(json_array(event, id)) FROM (
            SELECT event, id FROM change WHERE event NOT IN ('expired', 'purged') ORDER BY n
        )
    )
    FROM enqueue_in AS i
    WHERE i.n = (SELECT min(n) FROM enqueue_in)
      AND EXISTS (SELECT 1 FROM change WHERE event NOT IN ('expired', 'purged'))
    ON CONFLICT (n) DO UPDATE
    SET news = iif(news IS NULL, excluded.news, substr(news, 1, length(news) - 1) || ',' || substr(excluded.news, 2));
END;
