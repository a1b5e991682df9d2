-- The one way a record goes. A part of other transitions, never called by itself.
-- In:  gone (key, cause): the records; removed with it.
--      INSERT INTO remove (now_ms, qid)
-- Out: tombstones; the counters without what was counted; what `follow` leaves, in a queue that is coupled.
CREATE TEMP TABLE gone (key INTEGER PRIMARY KEY, cause TEXT NOT NULL);
CREATE TEMP VIEW remove AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER remove_do INSTEAD OF INSERT ON remove BEGIN
    INSERT OR REPLACE INTO tombstone (qid, id, nonce, token, is_delayed, settled_token, settled_state, cause, until_ms)
    SELECT qid, id, nonce, token, is_delayed, settled_token, settled_state, cause, NEW.now_ms + {tombstone_ms}
    FROM gone CROSS JOIN job USING (key);
    INSERT OR REPLACE INTO ended (key, id, grp, cause)
    SELECT key, job.id, tie.grp, gone.cause FROM gone CROSS JOIN job USING (key) LEFT JOIN tie USING (key)
    WHERE (SELECT is_coupled FROM queue WHERE qid = NEW.qid);

    -- What a purge left behind was taken out of the counters by the purge.
    UPDATE queue
    SET n_waiting = n_waiting - g.waiting, n_scheduled = n_scheduled - g.scheduled, n_queued = n_queued - g.queued,
        n_processing = n_processing - g.processing, n_failing = n_failing - g.failing,
        n_completed = n_completed - g.completed, n_failed = n_failed - g.failed,
        n_blocked = n_blocked - g.blocked
    FROM (
        SELECT count(*) FILTER (WHERE state = 'waiting') AS waiting,
               count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
               count(*) FILTER (WHERE state = 'queued') AS queued,
               count(*) FILTER (WHERE state = 'processing') AS processing,
               count(*) FILTER (WHERE state = 'failing') AS failing,
               count(*) FILTER (WHERE state = 'completed') AS completed,
               count(*) FILTER (WHERE state = 'failed') AS failed,
               count(*) FILTER (WHERE state = 'blocked') AS blocked
        FROM gone CROSS JOIN job USING (key)
        WHERE {unpurged}
    ) AS g
    WHERE qid = NEW.qid;

    DELETE FROM message WHERE key IN (SELECT key FROM gone);
    DELETE FROM error WHERE key IN (SELECT key FROM gone);
    DELETE FROM job WHERE key IN (SELECT key FROM gone);
    DELETE FROM tie WHERE key IN (SELECT key FROM gone);
    DELETE FROM gone;
    INSERT INTO follow SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM ended);
END;
