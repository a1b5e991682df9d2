-- Lets a finished job's result, or a dead letter, live `ttl_ms` from now.
-- In:  INSERT INTO update_ttl (now_ms, qid, id, ttl_ms)
-- Out: update_ttl_out: one row: 'updated', 'not_found' or 'not_terminal'.
CREATE TEMP TABLE update_ttl_out (status TEXT NOT NULL, key INTEGER);
CREATE TEMP VIEW update_ttl AS SELECT 0 AS now_ms, 0 AS qid, '' AS id, 0 AS ttl_ms;
CREATE TEMP TRIGGER update_ttl_do INSTEAD OF INSERT ON update_ttl BEGIN
    DELETE FROM update_ttl_out;
    INSERT INTO update_ttl_out (status, key)
    SELECT CASE WHEN NOT job.{may:expire} THEN 'not_terminal'
                WHEN job.state = 'completed' AND job.result_until_ms <= NEW.now_ms THEN 'not_found'
                ELSE 'updated' END, job.key
    FROM job WHERE qid = NEW.qid AND id = NEW.id AND {live};
    INSERT INTO update_ttl_out (status) SELECT 'not_found' WHERE NOT EXISTS (SELECT 1 FROM update_ttl_out);
    UPDATE job
    SET result_ttl_ms = iif(state = 'completed', NEW.ttl_ms, result_ttl_ms),
        result_until_ms = iif(state = 'completed', NEW.now_ms + NEW.ttl_ms, NULL), sweep_ms = NEW.now_ms + NEW.ttl_ms,
        expires_ms = max(NEW.now_ms + NEW.ttl_ms, ifnull(dedup_until_ms, 0))
    WHERE key = (SELECT key FROM update_ttl_out WHERE status = 'updated') AND expires_ms <> {never};
    -- A pinned one begins it when it is let go.
    UPDATE job SET result_ttl_ms = NEW.ttl_ms
    WHERE key = (SELECT key FROM update_ttl_out WHERE status = 'updated') AND expires_ms = {never};
END;
