-- Stores a schedule under its name.
-- In:  INSERT INTO put_schedule (now_ms, qid, name, spec, next_ms, only_new)
-- Out: schedule_out: a row if it was stored.
CREATE TEMP TABLE schedule_out (name TEXT);
CREATE TEMP VIEW put_schedule AS SELECT 0 AS now_ms, 0 AS qid, '' AS name, x'' AS spec, 0 AS next_ms, 0 AS only_new;
CREATE TEMP TRIGGER put_schedule_do INSTEAD OF INSERT ON put_schedule BEGIN
    DELETE FROM schedule_out;
    INSERT INTO schedule_out
    SELECT NEW.name
    WHERE NOT (NEW.only_new AND EXISTS (SELECT 1 FROM schedule WHERE qid = NEW.qid AND name = NEW.name));
    INSERT OR REPLACE INTO schedule (qid, name, spec, next_ms)
    SELECT NEW.qid, NEW.name, NEW.spec, NEW.next_ms FROM schedule_out;
    -- So that a reaper of the whole store finds a queue that holds nothing else.
    UPDATE queue SET is_listed = 1 WHERE qid = NEW.qid AND is_listed <> 1 AND EXISTS (SELECT 1 FROM schedule_out);
END;
