-- Removes dead letters for good.
-- In:  INSERT INTO discard (now_ms, qid, ids)     ids: JSON [id, ...]
-- Out: discard_out: the ids that were removed, in order; change: what followed.
CREATE TEMP TABLE discard_out (n INTEGER PRIMARY KEY, key INTEGER UNIQUE, id TEXT);
CREATE TEMP VIEW discard AS SELECT 0 AS now_ms, 0 AS qid, '' AS ids;
CREATE TEMP TRIGGER discard_do INSTEAD OF INSERT ON discard BEGIN
    DELETE FROM discard_out;
    DELETE FROM change;
    INSERT OR IGNORE INTO discard_out (key, id)
    SELECT job.key, job.id FROM json_each(NEW.ids) AS i CROSS JOIN job ON job.qid = NEW.qid AND job.id = i.value
    WHERE job.{may:discard} AND {live}
    ORDER BY i.key;
    INSERT INTO gone (key, cause) SELECT key, 'discarded' FROM discard_out;
    INSERT INTO remove SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM gone);
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, 'discarded', id FROM discard_out WHERE {listened} ORDER BY n;
    INSERT INTO event (qid, at_s, name, id)
    SELECT NEW.qid, {clock_s}, event, id FROM change WHERE {listened} AND {told} ORDER BY n;
END;
