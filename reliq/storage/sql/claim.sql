-- Hands up to `limit_n` queued jobs to a worker.
-- In:  INSERT INTO claim (now_ms, qid, worker, runners, ttl_ms, limit_n, serial, lease_ms)
-- Out: claim_out in order of delivery; claim_more: one row, whether claimable work remained.
CREATE TEMP TABLE claim_out (
    n INTEGER PRIMARY KEY, key INTEGER, id TEXT, nonce BLOB, token INTEGER, attempts INTEGER, max_attempts INTEGER,
    created_ms INTEGER, priority INTEGER, has_waiter INTEGER, message BLOB
);
CREATE TEMP TABLE claim_more (more INTEGER);
CREATE TEMP VIEW claim AS
SELECT 0 AS now_ms, 0 AS qid, '' AS worker, 0 AS runners, 0 AS ttl_ms, 0 AS limit_n, 0 AS serial, 0 AS lease_ms;
CREATE TEMP TRIGGER claim_do INSTEAD OF INSERT ON claim BEGIN
    DELETE FROM claim_out;
    DELETE FROM claim_more;
    INSERT INTO worker (qid, worker, runners, ttl_ms, deadline_ms)
    VALUES (NEW.qid, NEW.worker, NEW.runners, NEW.ttl_ms, NEW.now_ms + NEW.ttl_ms)
    ON CONFLICT DO UPDATE
    SET runners = excluded.runners, ttl_ms = excluded.ttl_ms, deadline_ms = excluded.deadline_ms, has_grace = 0;

    -- A fair share, up to a volume of bytes; a solo job alone, so a batch ends before it.
    INSERT INTO claim_out
    SELECT t.n, t.key, job.id, job.nonce, job.token + 1, job.attempts + 1, job.max_attempts, job.created_ms,
           job.priority, job.waited_ms > NEW.now_ms, message.message
    FROM (
        SELECT key, row_number() OVER sofar AS n, sum(size) OVER sofar AS bytes, max(is_solo) OVER sofar AS is_solo
        FROM (
            SELECT key, priority, position, size, is_solo FROM job
            WHERE qid = NEW.qid AND epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid)
              AND {may:claim}
              AND NOT (SELECT is_paused FROM queue WHERE qid = NEW.qid)
            ORDER BY priority DESC, position
            LIMIT (
                SELECT min(NEW.limit_n, max(1, n_queued / max(1, (
                    SELECT sum(runners) FROM worker WHERE qid = NEW.qid
                ))))
                FROM queue WHERE qid = NEW.qid
            )
        )
        WINDOW sofar AS (ORDER BY priority DESC, position ROWS UNBOUNDED PRECEDING)
    ) AS t CROSS JOIN job USING (key) CROSS JOIN message USING (key)
    WHERE t.n = 1 OR t.bytes <= {max_claim_bytes} AND NOT t.is_solo;

    UPDATE job
    SET state = 'processing', token = token + 1, attempts = attempts + 1, updated_ms = NEW.now_ms, holder = NEW.worker,
        serial = NEW.serial, lease_ms = NEW.now_ms + NEW.lease_ms, is_batch = (SELECT count(*) > 1 FROM claim_out)
    WHERE key IN (SELECT key FROM claim_out);
    UPDATE queue SET n_queued = n_queued - c.n, n_processing = n_processing + c.n
    FROM (SELECT count(*) AS n FROM claim_out) AS c
    WHERE qid = NEW.qid AND c.n > 0;
    INSERT INTO claim_more SELECT n_queued > 0 AND NOT is_paused FROM queue WHERE qid = NEW.qid;
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, 'processing', id FROM claim_out WHERE {listened} ORDER BY n;
END;
