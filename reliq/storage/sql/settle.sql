-- Ends runs, item by item: refused unless processing with this (nonce, token).
-- In:  settle_in: one row per outcome, each id once.
--      INSERT INTO settle (now_ms, qid, worker), or for one settle_alone (these, and the columns after n)
-- Out: settle_out per n that was not refused: state it led to; is_new = 0: the answer to a repeat; on one with
--      is_new = 2 news: JSON [[event, id], ...] of what followed for others.
CREATE TEMP TABLE settle_in (
    n INTEGER PRIMARY KEY, id TEXT, nonce BLOB, token INTEGER, verb TEXT, result BLOB, error BLOB, delay_ms INTEGER,
    ttl_ms INTEGER
);
CREATE TEMP TABLE settle_out (
    n INTEGER PRIMARY KEY, key INTEGER, state TEXT NOT NULL, is_new INTEGER NOT NULL, place INTEGER, news TEXT
);
CREATE TEMP VIEW settle AS SELECT 0 AS now_ms, 0 AS qid, '' AS worker;
CREATE TEMP VIEW settle_repeats AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP VIEW settle_unfinished AS SELECT 0 AS now_ms, 0 AS qid, '' AS worker;
CREATE TEMP VIEW settle_after AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP VIEW settle_coupled AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP VIEW settle_news AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER settle_do INSTEAD OF INSERT ON settle BEGIN
    DELETE FROM settle_out;
    INSERT INTO settle_out (n, key, state, is_new)
    SELECT i.n, job.key,
           CASE WHEN i.verb = 'complete' THEN 'completed'
                WHEN job.is_cancelling THEN 'absent'
                WHEN i.verb = 'release' THEN 'queued'
                WHEN i.verb = 'fail' OR job.attempts >= job.max_attempts AND NOT {persistent} THEN 'failed'
                WHEN i.delay_ms > 0 THEN 'failing'
                ELSE 'queued' END,
           1
    FROM settle_in AS i CROSS JOIN job ON job.qid = NEW.qid AND job.id = i.id
    WHERE job.nonce = i.nonce AND job.token = i.token
      AND CASE i.verb WHEN 'complete' THEN job.{may:complete} WHEN 'retry' THEN job.{may:retry}
                      WHEN 'fail' THEN job.{may:fail} WHEN 'release' THEN job.{may:release} END;
    INSERT INTO settle_repeats
    SELECT NEW.now_ms, NEW.qid WHERE (SELECT count(*) FROM settle_out) < (SELECT count(*) FROM settle_in);
    INSERT INTO settle_unfinished
    SELECT NEW.now_ms, NEW.qid, NEW.worker WHERE EXISTS (SELECT 1 FROM settle_out WHERE is_new AND state <> 'completed');

    -- One that goes (absent) keeps its state here and leaves in `remove`, with the answer for repeats.
    UPDATE job
    SET state = iif(o.state = 'absent', job.state, o.state), updated_ms = NEW.now_ms,
        settled_token = i.token, settled_state = o.state,
        epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid), holder = NULL, serial = NULL, lease_ms = NULL, is_batch = 0, is_cancelling = 0,
        attempts = job.attempts - (i.verb = 'release'), is_exhausted = iif(o.state = 'failed', i.verb = 'retry', 0),
        position = ifnull(o.place, job.position),
        due_ms = iif(o.state = 'failing', NEW.now_ms + i.delay_ms, NULL),
        result = iif(o.state = 'completed', i.result, NULL),
        result_ttl_ms = iif(o.state = 'completed', ifnull(i.ttl_ms, job.result_ttl_ms), job.result_ttl_ms),
        result_until_ms = iif(o.state = 'completed', NEW.now_ms + ifnull(i.ttl_ms, job.result_ttl_ms), NULL),
        dedup_until_ms = iif(o.state = 'completed', NEW.now_ms + job.dedup_ttl_ms, NULL),
        expires_ms = CASE o.state WHEN 'completed' THEN NEW.now_ms + max(ifnull(i.ttl_ms, job.result_ttl_ms), job.dedup_ttl_ms)
                                  WHEN 'failed' THEN NEW.now_ms + ifnull(i.ttl_ms, job.dead_ttl_ms) END,
        sweep_ms = CASE o.state WHEN 'completed' THEN NEW.now_ms + ifnull(i.ttl_ms, job.result_ttl_ms)
                                WHEN 'failed' THEN NEW.now_ms + ifnull(i.ttl_ms, job.dead_ttl_ms) END
    FROM settle_out AS o CROSS JOIN settle_in AS i USING (n)
    WHERE job.key = o.key AND o.is_new;

    UPDATE queue
    SET n_processing = n_processing - (SELECT count(*) FROM settle_out WHERE is_new AND state <> 'absent'),
        n_completed = n_completed + (SELECT count(*) FROM settle_out WHERE is_new AND state = 'completed')
    WHERE qid = NEW.qid AND EXISTS (SELECT 1 FROM settle_out);
    INSERT INTO settle_after
    SELECT NEW.now_ms, NEW.qid FROM queue
    WHERE qid = NEW.qid
      AND (is_coupled OR {listening} OR EXISTS (SELECT 1 FROM settle_out WHERE state = 'absent'));
END;

-- The last settle's answer, from the record or from what is left of it.
CREATE TEMP TRIGGER settle_repeats_do INSTEAD OF INSERT ON settle_repeats BEGIN
    INSERT OR IGNORE INTO settle_out (n, state, is_new)
    SELECT i.n, job.settled_state, 0
    FROM settle_in AS i CROSS JOIN job ON job.qid = NEW.qid AND job.id = i.id
    WHERE i.n NOT IN (SELECT n FROM settle_out) AND job.nonce = i.nonce AND job.settled_token = i.token;
    INSERT OR IGNORE INTO settle_out (n, state, is_new)
    SELECT i.n, t.settled_state, 0
    FROM settle_in AS i CROSS JOIN tombstone AS t ON t.qid = NEW.qid AND t.id = i.id AND t.nonce = i.nonce
    WHERE i.n NOT IN (SELECT n FROM settle_out) AND t.settled_token = i.token AND t.until_ms > NEW.now_ms;
END;

CREATE TEMP TRIGGER settle_unfinished_do INSTEAD OF INSERT ON settle_unfinished BEGIN
    -- Released jobs go to the front in the order in which they stood, retried ones to the back.
    UPDATE settle_out SET place = (SELECT back FROM queue WHERE qid = NEW.qid) + n WHERE is_new AND state = 'queued';
    UPDATE settle_out SET place = (SELECT front FROM queue WHERE qid = NEW.qid) - r.n
    FROM (
        SELECT o.n AS o, row_number() OVER (ORDER BY job.position DESC) AS n
        FROM settle_out AS o JOIN settle_in AS i USING (n) CROSS JOIN job USING (key)
        WHERE o.is_new AND o.state = 'queued' AND i.verb = 'release'
    ) AS r
    WHERE settle_out.n = r.o;
    UPDATE queue
    SET n_queued = n_queued + o.queued, n_failing = n_failing + o.failing, n_failed = n_failed + o.failed,
        front = min(front, ifnull(o.place, front)), back = back + o.last + 1
    FROM (
        SELECT max(n) AS last, min(place) AS place, count(*) FILTER (WHERE state = 'queued') AS queued,
               count(*) FILTER (WHERE state = 'failing') AS failing, count(*) FILTER (WHERE state = 'failed') AS failed
        FROM settle_out WHERE is_new
    ) AS o
    WHERE qid = NEW.qid;
    INSERT OR REPLACE INTO error (key, token, at_ms, worker, attempt, error)
    SELECT o.key, i.token, NEW.now_ms, NEW.worker, job.attempts, i.error
    FROM settle_out AS o CROSS JOIN settle_in AS i USING (n) CROSS JOIN job USING (key)
    WHERE o.is_new AND o.state <> 'absent' AND i.verb IN ('retry', 'fail');
    DELETE FROM error
    WHERE key IN (SELECT o.key FROM settle_out AS o JOIN settle_in AS i USING (n) WHERE i.verb IN ('retry', 'fail'))
      AND token <= (
        SELECT e.token FROM error AS e WHERE e.key = error.key ORDER BY e.token DESC LIMIT 1 OFFSET {history}
    );
    UPDATE job SET attempts = {steady}
    WHERE key IN (SELECT o.key FROM settle_out AS o JOIN settle_in AS i USING (n) WHERE o.is_new AND i.verb = 'retry')
      AND NOT is_cancelling AND {persistent};
END;

CREATE TEMP TRIGGER settle_after_do INSTEAD OF INSERT ON settle_after BEGIN
    DELETE FROM change;
    INSERT INTO settle_coupled SELECT NEW.now_ms, NEW.qid FROM queue WHERE qid = NEW.qid AND is_coupled;
    INSERT INTO gone (key, cause) SELECT key, 'cancelled' FROM settle_out WHERE is_new AND state = 'absent';
    INSERT INTO remove SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM gone);
    INSERT INTO follow
    SELECT NEW.now_ms, NEW.qid FROM queue
    WHERE qid = NEW.qid AND is_coupled
      -- If one went, `remove` did.
      AND NOT EXISTS (SELECT 1 FROM settle_out WHERE is_new AND state = 'absent');
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s},
           CASE WHEN o.state = 'absent' THEN 'cancelled' WHEN i.verb = 'release' THEN 'requeued'
                WHEN o.state = 'queued' THEN 'failing' ELSE o.state END, i.id
    FROM settle_out AS o JOIN settle_in AS i USING (n) WHERE {listened} AND o.is_new ORDER BY o.n;
    INSERT INTO settle_news SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM change);
END;

CREATE TEMP TRIGGER settle_coupled_do INSTEAD OF INSERT ON settle_coupled BEGIN
    UPDATE job
    SET dedup_until_ms = created_ms + dedup_ttl_ms, expires_ms = max(result_until_ms, created_ms + dedup_ttl_ms)
    WHERE {is_fifo}
      AND key IN (SELECT key FROM settle_out WHERE is_new AND state = 'completed');
    INSERT INTO ended (key, id, grp, cause)
    SELECT o.key, i.id, tie.grp, o.state
    FROM settle_out AS o CROSS JOIN settle_in AS i USING (n) LEFT JOIN tie USING (key)
    WHERE o.is_new AND o.state IN ('completed', 'failed');
END;

CREATE TEMP TRIGGER settle_news_do INSTEAD OF INSERT ON settle_news BEGIN
    UPDATE settle_out
    SET is_new = 2, news = (SELECT json_group_array(json_array(event, id)) FROM (SELECT event, id FROM change ORDER BY n))
    WHERE n = (SELECT min(n) FROM settle_out);
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, event, id FROM change WHERE {listened} AND {told} ORDER BY n;
END;
