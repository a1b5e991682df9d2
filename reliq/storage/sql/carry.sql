-- Lets jobs go, or fail, that waited for others which have ended: up to {max_cascade} of each. A part of other transitions,
-- which goes on with the next of them; until then the jobs wait.
-- In:  cascade: jobs that have ended.
--      INSERT INTO carry (now_ms, qid)
-- Out: change ('queued' | 'scheduled' | 'failed', id), ('ready', ''); line: groups whose line lost somebody.
CREATE TEMP TABLE carry_met (pred_key INTEGER NOT NULL, key INTEGER NOT NULL);
CREATE TEMP TABLE carry_free (n INTEGER PRIMARY KEY, key INTEGER NOT NULL, state TEXT NOT NULL);
CREATE TEMP TABLE carry_from (key INTEGER PRIMARY KEY, id TEXT NOT NULL, cause TEXT NOT NULL);
CREATE TEMP VIEW carry_doomed AS
WITH RECURSIVE doomed (key, pred_key) AS (
    SELECT l.dep_key, l.pred_key FROM carry_from AS c CROSS JOIN link AS l ON l.pred_key = c.key AND l.is_met = 0
    UNION
    SELECT l.dep_key, l.pred_key FROM doomed AS d CROSS JOIN link AS l ON l.pred_key = d.key AND l.is_met = 0
    LIMIT {max_cascade}
)
SELECT key, pred_key FROM doomed;
CREATE TEMP VIEW carry AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP VIEW carry_on AS SELECT 0 AS now_ms, 0 AS qid;
CREATE TEMP TRIGGER carry_do INSTEAD OF INSERT ON carry BEGIN
    DELETE FROM carry_met;
    INSERT INTO carry_met (pred_key, key)
    SELECT l.pred_key, l.dep_key FROM cascade AS c CROSS JOIN link AS l ON l.pred_key = c.key AND l.is_met = 0
    WHERE c.qid = NEW.qid AND c.cause = 'completed' LIMIT {max_cascade};
    INSERT INTO carry_on SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM carry_met);

    DELETE FROM carry_from;
    INSERT INTO carry_from (key, id, cause)
    SELECT key, id, cause FROM cascade WHERE qid = NEW.qid AND cause <> 'completed' LIMIT {max_cascade};
    INSERT OR IGNORE INTO doomed (key, id, cause)
    SELECT d.key, ifnull(c.id, job.id), ifnull(c.cause, 'failed')
    FROM carry_doomed AS d LEFT JOIN carry_from AS c ON c.key = d.pred_key LEFT JOIN job ON job.key = d.pred_key
    WHERE EXISTS (SELECT 1 FROM carry_from);
    INSERT INTO doom SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM doomed);
    DELETE FROM cascade
    WHERE qid = NEW.qid AND NOT EXISTS (SELECT 1 FROM link WHERE pred_key = cascade.key AND is_met = 0);
END;
CREATE TEMP TRIGGER carry_on_do INSTEAD OF INSERT ON carry_on BEGIN
    UPDATE link SET is_met = 1 FROM carry_met AS m
    WHERE link.pred_key = m.pred_key AND link.is_met = 0 AND link.dep_key = m.key;
    DELETE FROM carry_free;
    INSERT INTO carry_free (key, state)
    SELECT DISTINCT m.key, iif(tie.not_before_ms > NEW.now_ms, 'scheduled', 'queued')
    FROM carry_met AS m CROSS JOIN job USING (key) LEFT JOIN tie USING (key)
    WHERE job.state = 'waiting' AND {unpurged}
      AND NOT EXISTS (SELECT 1 FROM link WHERE dep_key = m.key AND is_met = 0)
    ORDER BY m.key;
    UPDATE job
    SET state = f.state, updated_ms = NEW.now_ms, due_ms = iif(f.state = 'scheduled', tie.not_before_ms, NULL),
        position = q.back + f.n
    FROM carry_free AS f CROSS JOIN queue AS q LEFT JOIN tie ON tie.key = f.key
    WHERE job.key = f.key AND q.qid = NEW.qid;
    UPDATE queue
    SET back = back + f.n + 1, n_waiting = n_waiting - f.n, n_queued = n_queued + f.queued,
        n_scheduled = n_scheduled + f.n - f.queued
    FROM (SELECT count(*) AS n, count(*) FILTER (WHERE state = 'queued') AS queued FROM carry_free) AS f
    WHERE qid = NEW.qid AND f.n > 0;
    INSERT INTO change (event, id) SELECT f.state, job.id FROM carry_free AS f CROSS JOIN job USING (key) ORDER BY f.n;
    INSERT INTO arrived
    SELECT f.key FROM carry_free AS f CROSS JOIN tie USING (key) WHERE f.state = 'queued' AND tie.grp <> '';
    INSERT INTO arrive SELECT NEW.now_ms, NEW.qid WHERE EXISTS (SELECT 1 FROM arrived);
    INSERT INTO change (event, id)
    SELECT 'ready', '' WHERE EXISTS (SELECT 1 FROM carry_free AS f CROSS JOIN job USING (key) WHERE job.state = 'queued');
END;
