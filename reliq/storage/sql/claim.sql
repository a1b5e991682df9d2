-- Hands up to `limit_n` queued jobs to a worker.
-- In:  INSERT INTO claim (now_ms, qid, worker, runners, ttl_ms, limit_n, serial, lease_ms)
-- Out: claim_more, which the caller empties: a row per claim: whether claimable work remained; wait_ms: until the next
--      token of the rate limit; ties: NULL or JSON [[index, group, sequence, is_persistent], ...]; jobs: JSON [[id, hex of nonce, token, attempts,
--      max_attempts, created_ms, priority, has_waiter, hex of message], ...] in order of delivery. One row, because
--      every row that is fetched hands the interpreter's lock over and back.
CREATE TEMP TABLE claim_take (n INTEGER PRIMARY KEY, key INTEGER, size INTEGER, is_solo INTEGER);
CREATE TEMP TABLE claim_more (more INTEGER, jobs TEXT, ties TEXT, wait_ms INTEGER);
CREATE TEMP VIEW claim AS
SELECT 0 AS now_ms, 0 AS qid, '' AS worker, 0 AS runners, 0 AS ttl_ms, 0 AS limit_n, 0 AS serial, 0 AS lease_ms;
CREATE TEMP VIEW claim_trim AS SELECT 0 AS n;
CREATE TEMP VIEW claim_after AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER claim_do INSTEAD OF INSERT ON claim BEGIN
    DELETE FROM claim_take;
    INSERT INTO worker (qid, worker, runners, ttl_ms, deadline_ms)
    VALUES (NEW.qid, NEW.worker, NEW.runners, NEW.ttl_ms, NEW.now_ms + NEW.ttl_ms)
    ON CONFLICT DO UPDATE
    SET runners = excluded.runners, ttl_ms = excluded.ttl_ms, deadline_ms = excluded.deadline_ms, has_grace = 0
    -- Claims in a tight loop need not write it each time.
    WHERE excluded.deadline_ms NOT BETWEEN deadline_ms AND deadline_ms + 20 OR has_grace
       OR excluded.ttl_ms <> ttl_ms OR excluded.runners <> runners;

    -- A fair share, less what `claim_trim` takes away.
    INSERT INTO claim_take (key, size, is_solo)
    SELECT key, size, is_solo FROM (
        SELECT key, priority, position, size, is_solo FROM job
            WHERE qid = NEW.qid AND epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid)
              AND {may:claim}
              AND NOT (SELECT is_paused FROM queue WHERE qid = NEW.qid)
            ORDER BY priority DESC, position
        LIMIT (
            SELECT iif(is_limited, (SELECT {open} FROM limits WHERE qid = NEW.qid), min(NEW.limit_n, max(1, n_queued / max(1, (
                SELECT sum(runners) FROM worker WHERE qid = NEW.qid
            )))))
            FROM queue WHERE qid = NEW.qid
        )
    );
    INSERT INTO claim_trim SELECT 1 WHERE (SELECT total(size) > {max_claim_bytes} OR max(is_solo) FROM claim_take);

    UPDATE job
    SET state = 'processing', token = token + 1, attempts = attempts + 1, updated_ms = NEW.now_ms, holder = NEW.worker,
        serial = NEW.serial, lease_ms = NEW.now_ms + NEW.lease_ms, is_batch = (SELECT count(*) > 1 FROM claim_take)
    WHERE key IN (SELECT key FROM claim_take);
    UPDATE queue
    SET n_queued = n_queued - (SELECT count(*) FROM claim_take),
        n_processing = n_processing + (SELECT count(*) FROM claim_take)
    WHERE qid = NEW.qid AND EXISTS (SELECT 1 FROM claim_take);
    INSERT INTO claim_more (more, jobs)
    SELECT n_queued > 0 AND NOT is_paused, (
        SELECT json_group_array(json_array(
            job.id, hex(job.nonce), job.token, job.attempts, job.max_attempts, job.created_ms, job.priority,
            job.waited_ms > NEW.now_ms,
            hex(ifnull(job.message, (SELECT message FROM message WHERE message.key = t.key)))
        ))
        FROM claim_take AS t CROSS JOIN job USING (key)
    )
    FROM queue WHERE qid = NEW.qid;
    INSERT INTO claim_after
    SELECT NEW.now_ms, NEW.qid FROM queue WHERE qid = NEW.qid AND (is_limited OR is_coupled OR {listening});
END;

CREATE TEMP TRIGGER claim_after_do INSTEAD OF INSERT ON claim_after BEGIN
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, 'processing', id FROM claim_take CROSS JOIN job USING (key) WHERE {listened} ORDER BY n;
    UPDATE claim_more SET ties = (
        SELECT iif(count(*), json_group_array(json_array(t.n - 1, nullif(tie.grp, ''), tie.sequence, tie.grp = '')), NULL)
        FROM claim_take AS t CROSS JOIN tie USING (key) WHERE tie.grp IS NOT NULL
    )
    WHERE rowid = (SELECT max(rowid) FROM claim_more);
    -- What was taken takes a token.
    UPDATE limits SET bucket_us = max({bucket_us}, NEW.now_ms * 1000) + {tick_us}
    WHERE qid = NEW.qid AND rate IS NOT NULL AND EXISTS (SELECT 1 FROM claim_take);
    UPDATE claim_more
    SET more = {open}, wait_ms = iif({token_us} > 0 AND ifnull(n_processing < max_concurrency, 1), ({token_us} + 999) / 1000, NULL)
    FROM queue JOIN limits USING (qid)
    WHERE queue.qid = NEW.qid AND claim_more.rowid = (SELECT max(rowid) FROM claim_more) AND claim_more.more;
END;

-- Up to a volume of bytes; a solo job alone, so a batch ends before it.
CREATE TEMP TRIGGER claim_trim_do INSTEAD OF INSERT ON claim_trim BEGIN
    DELETE FROM claim_take WHERE n >= (
        SELECT min(n) FROM (
            SELECT n, sum(size) OVER sofar AS bytes, max(is_solo) OVER sofar AS is_solo
            FROM claim_take WINDOW sofar AS (ORDER BY n ROWS UNBOUNDED PRECEDING)
        ) WHERE n > 1 AND NOT (bytes <= {max_claim_bytes} AND NOT is_solo)
    );
END;
