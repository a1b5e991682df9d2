-- Sets the next tick of a schedule, if it is the one that the caller has carried out.
-- In:  INSERT INTO move_schedule (now_ms, qid, name, was_ms, next_ms)
-- Out: schedule_out: a row if it was.
CREATE TEMP VIEW move_schedule AS SELECT 0 AS now_ms, 0 AS qid, '' AS name, 0 AS was_ms, 0 AS next_ms;
CREATE TEMP TRIGGER move_schedule_do INSTEAD OF INSERT ON move_schedule BEGIN
    DELETE FROM schedule_out;
    INSERT INTO schedule_out
    SELECT name FROM schedule WHERE qid = NEW.qid AND name = NEW.name AND next_ms = NEW.was_ms;
    UPDATE schedule SET next_ms = NEW.next_ms
    WHERE qid = NEW.qid AND name = NEW.name AND next_ms = NEW.was_ms;
END;
