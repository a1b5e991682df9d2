-- Keeps what a running job reports of itself.
-- In:  INSERT INTO progress (now_ms, qid, id, nonce, token, data)
-- Out: progress_out: a row if the job is the caller's.
CREATE TEMP TABLE progress_out (key INTEGER NOT NULL);
CREATE TEMP VIEW progress AS SELECT 0 AS now_ms, 0 AS qid, '' AS id, x'' AS nonce, 0 AS token, x'' AS data;
CREATE TEMP TRIGGER progress_do INSTEAD OF INSERT ON progress BEGIN
    DELETE FROM progress_out;
    INSERT INTO progress_out
    SELECT key FROM job
    WHERE qid = NEW.qid AND id = NEW.id AND nonce = NEW.nonce AND token = NEW.token AND {may:extend};
    INSERT INTO tie (key, qid, progress) SELECT key, NEW.qid, NEW.data FROM progress_out WHERE true
    ON CONFLICT (key) DO UPDATE SET progress = excluded.progress;
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, 'progress', NEW.id FROM progress_out WHERE {listened};
END;
