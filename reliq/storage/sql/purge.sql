-- Makes every job that is not processing absent at once; reaps carry the records out.
-- In:  INSERT INTO purge (now_ms, qid)
-- Out: purge_out: one row: how many they were.
CREATE TEMP TABLE purge_out (n INTEGER);
CREATE TEMP VIEW purge AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER purge_do INSTEAD OF INSERT ON purge BEGIN
    DELETE FROM purge_out;
    INSERT INTO purge_out
    SELECT n_waiting + n_scheduled + n_queued + n_failing + n_completed + n_failed + n_blocked
    FROM queue WHERE qid = NEW.qid;
    UPDATE queue
    SET epoch = epoch + 1, has_upkeep = 1, n_waiting = 0, n_scheduled = 0, n_queued = 0, n_failing = 0,
        n_completed = 0, n_failed = 0, n_blocked = 0
    WHERE qid = NEW.qid;
    -- What runs keeps its place in its line.
    UPDATE tie SET line_epoch = (SELECT epoch FROM queue WHERE qid = NEW.qid)
    WHERE line_epoch IS NOT NULL AND (SELECT is_coupled FROM queue WHERE qid = NEW.qid)
      AND key IN (SELECT key FROM job WHERE qid = NEW.qid AND state = 'processing');
    INSERT INTO event (qid, at_s, name, id) SELECT NEW.qid, {clock_s}, 'purged', '' WHERE {listened};
END;
