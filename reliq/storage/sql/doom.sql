-- Fails jobs that wait for something which will not complete. A part of `carry` and `enqueue`.
-- In:  doomed (key, id, cause): waiting jobs, for which job they wait and what became of it; removed with it.
--      INSERT INTO doom (now_ms, qid)
-- Out: change ('failed', id); line, cascade as in `unlink`.
CREATE TEMP TABLE doomed (key INTEGER PRIMARY KEY, id TEXT NOT NULL, cause TEXT NOT NULL);
CREATE TEMP VIEW doom AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER doom_do INSTEAD OF INSERT ON doom BEGIN
    INSERT OR IGNORE INTO ended (key, id, grp, cause)
    SELECT key, job.id, tie.grp, 'failed' FROM doomed CROSS JOIN job USING (key) LEFT JOIN tie USING (key);
    -- One that a purge has met is carried out with it.
    DELETE FROM doomed
    WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.key = doomed.key AND job.state = 'waiting' AND {unpurged});
    INSERT OR REPLACE INTO error (key, token, at_ms, worker, attempt, error)
    SELECT d.key, job.token, NEW.now_ms, '', 0,
           CAST(json_object('type', 'DependencyError', 'message', 'job ''' || d.id || ''', which it waits for, ' ||
               CASE d.cause WHEN 'failed' THEN 'failed' WHEN 'unknown' THEN 'is unknown' WHEN 'expired' THEN 'has expired'
                            ELSE 'was ' || d.cause END, 'traceback', '') AS BLOB)
    FROM doomed AS d CROSS JOIN job USING (key);
    INSERT INTO change (event, id) SELECT 'failed', job.id FROM doomed AS d CROSS JOIN job USING (key) ORDER BY d.key;
    UPDATE job
    SET state = 'failed', updated_ms = NEW.now_ms, due_ms = NULL, expires_ms = NEW.now_ms + dead_ttl_ms,
        sweep_ms = NEW.now_ms + dead_ttl_ms
    WHERE key IN (SELECT key FROM doomed);
    UPDATE queue SET n_waiting = n_waiting - d.n, n_failed = n_failed + d.n
    FROM (SELECT count(*) AS n FROM doomed) AS d
    WHERE qid = NEW.qid;
    DELETE FROM doomed;
    INSERT INTO unlink VALUES (NEW.now_ms, NEW.qid);
END;
