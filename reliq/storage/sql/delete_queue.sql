-- Removes a queue with everything in it: takes away up to {max_batch} running jobs, and when none is left makes all others
-- absent and forgets the settings; later steps carry out what that leaves.
-- In:  INSERT INTO delete_queue (now_ms, qid, is_gone)     is_gone: an earlier step forgot it
-- Out: delete_out: one row: n, how many jobs went; is_gone; more: call again.
CREATE TEMP TABLE delete_out (n INTEGER NOT NULL, is_gone INTEGER NOT NULL, more INTEGER NOT NULL);
CREATE TEMP VIEW delete_queue AS SELECT 0 AS now_ms, 0 AS qid, 0 AS is_gone;
CREATE TEMP VIEW delete_runs AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP VIEW delete_rest AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP VIEW delete_forget AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER delete_queue_do INSTEAD OF INSERT ON delete_queue BEGIN
    DELETE FROM delete_out;
    DELETE FROM change;
    INSERT INTO delete_out VALUES (0, NEW.is_gone, 0);
    INSERT INTO delete_runs SELECT NEW.now_ms, NEW.qid WHERE NOT NEW.is_gone;
    INSERT INTO delete_rest SELECT NEW.now_ms, NEW.qid WHERE NEW.is_gone;
    DELETE FROM change WHERE event <> 'purged';
END;
CREATE TEMP TRIGGER delete_runs_do INSTEAD OF INSERT ON delete_runs BEGIN
    INSERT INTO gone (key, cause)
    SELECT key, 'purged' FROM job WHERE qid = NEW.qid AND state = 'processing' AND {may:delete} LIMIT {max_batch};
    UPDATE delete_out SET n = (SELECT count(*) FROM gone), more = 1;
    INSERT INTO change (event, id) SELECT 'purged', job.id FROM gone CROSS JOIN job USING (key);
    INSERT INTO remove SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM gone);
    INSERT INTO delete_forget
    SELECT NEW.now_ms, NEW.qid WHERE NOT EXISTS (SELECT 1 FROM job WHERE qid = NEW.qid AND state = 'processing');
END;
CREATE TEMP TRIGGER delete_forget_do INSTEAD OF INSERT ON delete_forget BEGIN
    UPDATE delete_out SET is_gone = 1, n = n + (
        SELECT n_waiting + n_scheduled + n_queued + n_failing + n_completed + n_failed + n_blocked
        FROM queue WHERE qid = NEW.qid
    );
    -- Its number and `back` stay: other processes know it, and keys rest on it. Its name until all is carried out, so
    -- that a reaper of the whole store does that where this breaks off.
    UPDATE queue
    SET epoch = epoch + 1, has_upkeep = 1, is_listed = 2 * (is_listed > 0), is_paused = 0, reaped_ms = 0, n_waiting = 0, n_scheduled = 0,
        n_queued = 0, n_failing = 0, n_completed = 0, n_failed = 0, n_blocked = 0, is_limited = 0, is_bounded = 0
    WHERE qid = NEW.qid;
    DELETE FROM limits WHERE qid = NEW.qid;
    DELETE FROM schedule WHERE qid = NEW.qid;
    DELETE FROM worker WHERE qid = NEW.qid;
    INSERT INTO event (qid, at_s, name, id) SELECT NEW.qid, {clock_s}, 'purged', '' WHERE {listened};
END;
-- As a reap would.
CREATE TEMP TRIGGER delete_rest_do INSTEAD OF INSERT ON delete_rest BEGIN
    INSERT INTO sweep VALUES (NEW.now_ms, NEW.qid, {max_batch});
    INSERT INTO carry SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM cascade WHERE qid = NEW.qid);
    UPDATE delete_out SET more = {purge_left} OR EXISTS (SELECT 1 FROM cascade WHERE qid = NEW.qid);
    UPDATE queue SET is_listed = 0 WHERE qid = NEW.qid AND is_listed = 2 AND NOT (SELECT more FROM delete_out);
END;
