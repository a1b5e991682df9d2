-- What the ends of runs mean to other jobs: those that wait for them, that come to the head of a line, that get their
-- slot. A part of other transitions, for queues that are coupled.
-- In:  ended (key, id, grp, cause): jobs that have just ended; removed with it. grp, cause: as in `tie`, `cascade`.
--      INSERT INTO follow (now_ms, qid)
-- Out: change ('queued' | 'scheduled' | 'failed', id); ('ready', ''): something became claimable.
CREATE TEMP TABLE ended (key INTEGER PRIMARY KEY, id TEXT NOT NULL, grp TEXT, cause TEXT NOT NULL);
CREATE TEMP VIEW follow AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER follow_do INSTEAD OF INSERT ON follow BEGIN
    INSERT INTO unlink SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM ended);
    INSERT INTO carry SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM cascade WHERE qid = NEW.qid);
    INSERT INTO advance SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM line);
    -- A slot may have come free.
    INSERT INTO change (event, id)
    SELECT 'ready', '' FROM queue JOIN limits USING (qid)
    WHERE qid = NEW.qid AND n_queued > 0 AND NOT is_paused AND n_processing < max_concurrency;
END;
