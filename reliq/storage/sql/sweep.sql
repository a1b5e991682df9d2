-- Takes away up to `limit_n` of each: expired results, expired records, old tombstones, what a purge left.
-- A part of other transitions, so that a store without any worker stays bounded too.
-- In:  INSERT INTO sweep (now_ms, qid, limit_n)
-- Out: change ('expired' | 'purged', id) per record, and what `follow` adds.
CREATE TEMP TABLE change (n INTEGER PRIMARY KEY, event TEXT NOT NULL, id TEXT NOT NULL);
CREATE TEMP VIEW sweep AS SELECT 0 AS now_ms, 0 AS qid, 0 AS limit_n;
CREATE TEMP TRIGGER sweep_do INSTEAD OF INSERT ON sweep BEGIN
    UPDATE job SET result = NULL, sweep_ms = expires_ms
    WHERE key IN (
        SELECT key FROM job
        WHERE qid = NEW.qid AND epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid)
          AND sweep_ms <= NEW.now_ms AND expires_ms > NEW.now_ms
        ORDER BY sweep_ms LIMIT NEW.limit_n
    );

    INSERT OR IGNORE INTO gone (key, cause)
    SELECT key, 'expired' FROM job
    WHERE qid = NEW.qid AND epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid)
      AND sweep_ms <= NEW.now_ms AND expires_ms <= NEW.now_ms
      AND {may:expire}
    ORDER BY sweep_ms LIMIT NEW.limit_n;
    INSERT INTO change (event, id) SELECT 'expired', id FROM gone CROSS JOIN job USING (key) WHERE cause = 'expired';

    DELETE FROM tombstone WHERE grave IN (
        SELECT grave FROM tombstone WHERE qid = NEW.qid AND until_ms <= NEW.now_ms ORDER BY until_ms LIMIT NEW.limit_n
    );
    -- What a purge left.
    INSERT OR IGNORE INTO gone (key, cause)
    SELECT key, 'purged' FROM (
        SELECT * FROM (
            SELECT key FROM job WHERE qid = NEW.qid AND epoch < (SELECT epoch FROM queue WHERE qid = NEW.qid)
              AND state = 'queued' LIMIT NEW.limit_n
        )
        UNION ALL SELECT * FROM (
            SELECT key FROM job WHERE qid = NEW.qid AND epoch < (SELECT epoch FROM queue WHERE qid = NEW.qid)
              AND due_ms IS NOT NULL LIMIT NEW.limit_n
        )
        UNION ALL SELECT * FROM (
            SELECT key FROM job WHERE qid = NEW.qid AND epoch < (SELECT epoch FROM queue WHERE qid = NEW.qid)
              AND sweep_ms IS NOT NULL LIMIT NEW.limit_n
        )
    ) LIMIT NEW.limit_n;
    INSERT INTO change (event, id) SELECT 'purged', id FROM gone CROSS JOIN job USING (key) WHERE cause = 'purged';
    INSERT INTO remove SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM gone);
END;
