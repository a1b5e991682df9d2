-- Dead letters back to the queue's end.
-- In:  INSERT INTO revive (now_ms, qid, ids, limit_n)     ids: JSON [id, ...], NULL = the oldest
-- Out: revive_out: the ids that were revived, in order; change ('ready', ''): one of them became claimable.
CREATE TEMP TABLE revive_out (n INTEGER PRIMARY KEY, key INTEGER UNIQUE, id TEXT);
CREATE TEMP VIEW revive AS SELECT 0 AS now_ms, 0 AS qid, '' AS ids, 0 AS limit_n;
CREATE TEMP TRIGGER revive_do INSTEAD OF INSERT ON revive BEGIN
    DELETE FROM revive_out;
    DELETE FROM change;
    INSERT OR IGNORE INTO revive_out (key, id)
    SELECT job.key, job.id FROM json_each(NEW.ids) AS i CROSS JOIN job ON job.qid = NEW.qid AND job.id = i.value
    WHERE NEW.ids IS NOT NULL AND job.{may:revive} AND {live}
    ORDER BY i.key LIMIT NEW.limit_n;
    INSERT INTO revive_out (key, id)
    SELECT key, id FROM job
    WHERE NEW.ids IS NULL AND qid = NEW.qid AND epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid)
      AND {may:revive} AND {live}
    ORDER BY updated_ms, key LIMIT NEW.limit_n;
    UPDATE job
    SET state = 'queued', updated_ms = NEW.now_ms, attempts = 0, is_exhausted = 0, expires_ms = NULL, sweep_ms = NULL,
        position = q.back + r.n
    FROM revive_out AS r CROSS JOIN queue AS q
    WHERE job.key = +r.key AND q.qid = NEW.qid;
    UPDATE queue SET back = back + r.n + 1, n_queued = n_queued + r.n, n_failed = n_failed - r.n
    FROM (SELECT count(*) AS n FROM revive_out) AS r
    WHERE qid = NEW.qid AND r.n > 0;
    -- Those that its failure has yet to reach wait for its new life: it must not fail any that come to wait now.
    DELETE FROM cascade WHERE key IN (SELECT key FROM revive_out);
    -- To the end of its line.
    UPDATE tie SET sequence = iif(grp = '', NULL, job.position), line_epoch = job.epoch
    FROM revive_out AS r CROSS JOIN job USING (key)
    WHERE tie.key = +r.key AND tie.grp IS NOT NULL;
    INSERT INTO arrived SELECT key FROM revive_out CROSS JOIN tie USING (key) WHERE tie.grp <> '';
    INSERT INTO arrive SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM arrived);
    INSERT INTO change (event, id)
    SELECT 'ready', '' WHERE EXISTS (SELECT 1 FROM revive_out CROSS JOIN job USING (key) WHERE job.state = 'queued');
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, 'queued', id FROM revive_out WHERE {listened} ORDER BY n;
END;
