-- Joins an unfinished job: notes on it that somebody waits.
-- In:  INSERT INTO wait (now_ms, qid, id, nonce, waited_ms)     nonce: of one incarnation, x'' = any
-- Out: nothing.
CREATE TEMP VIEW wait AS SELECT 0 AS now_ms, 0 AS qid, '' AS id, x'' AS nonce, 0 AS waited_ms;
CREATE TEMP TRIGGER wait_do INSTEAD OF INSERT ON wait BEGIN
    UPDATE job SET waited_ms = NEW.waited_ms
    WHERE qid = NEW.qid AND id = NEW.id AND (NEW.nonce = x'' OR nonce = NEW.nonce)
      AND expires_ms IS NULL AND waited_ms < NEW.waited_ms;
END;
