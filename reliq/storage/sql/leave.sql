-- Removes a worker and takes back up to `limit_n` jobs that it holds.
-- In:  INSERT INTO leave (now_ms, qid, worker, limit_n)
-- Out: leave_out: one row: how many jobs; change (event, id) as in `recover`; the worker's row goes with its last job.
CREATE TEMP TABLE leave_out (n INTEGER NOT NULL);
CREATE TEMP VIEW leave AS SELECT 0 AS now_ms, 0 AS qid, '' AS worker, 0 AS limit_n;
CREATE TEMP TRIGGER leave_do INSTEAD OF INSERT ON leave BEGIN
    DELETE FROM change;
    DELETE FROM leave_out;
    INSERT INTO stalled (key)
    SELECT key FROM job WHERE qid = NEW.qid AND holder = NEW.worker AND {may:recover}
    ORDER BY position DESC LIMIT NEW.limit_n;
    INSERT INTO leave_out SELECT count(*) FROM stalled;
    INSERT INTO recover SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM stalled);
    UPDATE worker SET deadline_ms = min(deadline_ms, NEW.now_ms) WHERE qid = NEW.qid AND worker = NEW.worker;
    DELETE FROM worker WHERE qid = NEW.qid AND worker = NEW.worker AND NOT EXISTS (
        SELECT 1 FROM job WHERE job.qid = NEW.qid AND job.holder = NEW.worker AND job.state = 'processing'
    );
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, event, id FROM change WHERE {listened} AND {told} ORDER BY n;
END;
