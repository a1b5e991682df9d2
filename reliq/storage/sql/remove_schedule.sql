-- Removes a schedule.
-- In:  INSERT INTO remove_schedule (now_ms, qid, name)
-- Out: schedule_out: a row if it was there.
CREATE TEMP VIEW remove_schedule AS SELECT 0 AS now_ms, 0 AS qid, '' AS name;
CREATE TEMP TRIGGER remove_schedule_do INSTEAD OF INSERT ON remove_schedule BEGIN
    DELETE FROM schedule_out;
    INSERT INTO schedule_out SELECT name FROM schedule WHERE qid = NEW.qid AND name = NEW.name;
    DELETE FROM schedule WHERE qid = NEW.qid AND name = NEW.name;
END;
