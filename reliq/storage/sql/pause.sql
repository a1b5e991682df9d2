-- Stops or resumes the handing out of jobs.
-- In:  INSERT INTO pause (now_ms, qid, is_paused)
-- Out: nothing.
CREATE TEMP VIEW pause AS SELECT 0 AS now_ms, 0 AS qid, 0 AS is_paused;
CREATE TEMP TRIGGER pause_do INSTEAD OF INSERT ON pause BEGIN
    UPDATE queue SET is_paused = NEW.is_paused WHERE qid = NEW.qid;
END;
